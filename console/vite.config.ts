import { readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin, type Rolldown } from "vite";

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

const FRAME = ["src/main.tsx", "src/pages/home.tsx"];

/** Which modules a page needs when it opens, by the page: what it imports later is not among them. */
const needed = new Map<string, Set<string>>();

function needs(page: string, module: string, context: Rolldown.ChunkingContext): boolean {
  let found = needed.get(page);
  if (found === undefined) {
    found = new Set();
    const open = [resolve(page)];
    for (let id = open.pop(); id !== undefined; id = open.pop()) {
      if (found.has(id)) continue;
      found.add(id);
      open.push(...(context.getModuleInfo(id)?.importedIds ?? []));
    }
    needed.set(page, found);
  }
  return found.has(module);
}

/**
 * Puts together what is always loaded together. Left alone, the bundler makes a file of every icon that two pages have:
 * 190 files, which compress badly and name each other in a tenth of their bytes.
 */
const TOGETHER: Rolldown.CodeSplittingGroup[] = [
  {
    // A terminal is a document of its own, and has this in common with the console.
    name: (id, context) =>
      needs("src/terminal.ts", id, context) && FRAME.some((page) => needs(page, id, context)) ? "base" : null,
    priority: 3,
  },
  { name: (id, context) => (FRAME.some((page) => needs(page, id, context)) ? "frame" : null), priority: 2 },
  {
    // The list has the controls that most other pages have.
    name: (id, context) =>
      !id.includes("/src/pages/") && needs("src/pages/sessions.tsx", id, context) ? "controls" : null,
    minShareCount: 2,
    priority: 1,
  },
  {
    // Administrators go from one of these to the next.
    name: "administration",
    test: /\/src\/(pages\/(accounts|projects|quotas|groups|audit)\b|text\/(en\/)?administration)/,
    includeDependenciesRecursively: false,
  },
  {
    name: "session",
    test: /\/src\/pages\/session(\.tsx|\/(overview|topology|timeline|usage|logs|terminals|apps|graph|events|journal)\.)/,
    includeDependenciesRecursively: false,
  },
];

export default defineConfig({
  plugins: [react(), tailwindcss(), compressed()],
  build: {
    target: "es2024",
    outDir: "../manager/console/static",
    emptyOutDir: true,
    // Policies of the pages allow no inline script, and images of the page itself only.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rolldownOptions: {
      input: ["index.html", "terminal.html", "output.html"],
      output: { codeSplitting: { groups: TOGETHER }, chunkFileNames: "assets/[name]-[hash:7].js" },
      checks: { pluginTimings: false },
    },
  },
});
