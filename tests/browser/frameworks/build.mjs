// Builds a page's script for each framework: node build.mjs
import { readFile } from "node:fs/promises";
import { build } from "esbuild";
import { compile } from "svelte/compiler";

const svelte = {
  name: "svelte",
  setup(steps) {
    steps.onLoad({ filter: /\.svelte$/ }, async ({ path }) => {
      const { js } = compile(await readFile(path, "utf8"), { filename: path, generate: "client" });
      return { contents: js.code, loader: "js" };
    });
  },
};

await build({
  entryPoints: ["react.jsx", "vue.js", "svelte.js"],
  outdir: "built",
  bundle: true,
  format: "esm",
  jsx: "automatic",
  conditions: ["browser", "production"],
  define: {
    "process.env.NODE_ENV": '"development"', // React's strict mode mounts each component twice
    __VUE_OPTIONS_API__: "false",
    __VUE_PROD_DEVTOOLS__: "false",
    __VUE_PROD_HYDRATION_MISMATCH_DETAILS__: "false",
  },
  plugins: [svelte],
});
