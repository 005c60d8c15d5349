"""Single messages at streaming speed: the machines behind producers and consumers, without I/O."""
