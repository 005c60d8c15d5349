"""The OpenAPI document, and the API page that shows it."""
