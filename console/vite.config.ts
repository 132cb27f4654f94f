import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** Writes compressed copies beside the hashed files, so that the server compresses nothing. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    async writeBundle(options, bundle) {
      for (const name of Object.keys(bundle).filter((file) => /\.(js|css)$/.test(file))) {
        const file = join(options.dir ?? "", name);
        const source = await readFile(file);
        await writeFile(`${file}.gz`, gzipSync(source, { level: 9 }));
        await writeFile(`${file}.br`, brotliCompressSync(source));
      }
    },
  };
}

export default defineConfig({
  plugins: [react(), compressed()],
  build: {
    target: "es2024",
    outDir: "../manager/console/static",
    emptyOutDir: true,
    // Policies of the pages allow no inline script, and images of the page itself only.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rolldownOptions: { input: ["index.html", "terminal.html", "output.html"], checks: { pluginTimings: false } },
  },
});
