import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import yaml from "highlight.js/lib/languages/yaml";
import { useMemo } from "react";
import { classes } from "./classes";
import { CopyButton } from "./copy";

for (const [name, language] of Object.entries({ bash, json, python, yaml })) hljs.registerLanguage(name, language);

export type CodeLanguage = "bash" | "json" | "python" | "yaml" | "text";

interface Piece {
  scope: string;
  text: string;
}

/** Cuts a text into pieces with the scopes that the grammar gives them. It makes no HTML of it. */
function pieces(code: string, language: CodeLanguage): Piece[] {
  if (language === "text") return [{ scope: "", text: code }];
  // The tree, not its HTML: the pages' policy takes no text as markup.
  const { rootNode } = hljs.highlight(code, { language })._emitter as unknown as { rootNode: Tree };
  const found: Piece[] = [];
  const walk = (tree: Tree, scope: string) => {
    for (const child of tree.children) {
      if (typeof child === "string") found.push({ scope, text: child });
      else walk(child, child.scope ?? scope);
    }
  };
  walk(rootNode, "");
  return found;
}

interface Tree {
  scope?: string;
  children: (Tree | string)[];
}

const COLOURS: [RegExp, string][] = [
  [/^(attr|attribute|property|variable)/, "text-accent"],
  [/^(string|regexp|char)/, "text-good"],
  [/^(number|literal|symbol)/, "text-warn"],
  [/^(keyword|built_in|title|type)/, "text-busy"],
  [/^(comment|meta)/, "text-quiet"],
];

/** A text of a program, coloured, with a button that copies it. */
export function Code({
  code,
  language,
  label,
  className,
  wrap = false,
}: {
  code: string;
  language: CodeLanguage;
  label: string;
  className?: string;
  wrap?: boolean;
}) {
  const coloured = useMemo(() => pieces(code, language), [code, language]);
  return (
    <div className={classes("relative min-w-0", className)}>
      <div className="absolute top-1.5 right-1.5">
        <CopyButton text={code} />
      </div>
      <section
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
        tabIndex={0}
        aria-label={label}
        className="max-h-[60vh] overflow-auto rounded-md bg-sunken"
      >
        <pre className={classes("p-3 pr-12", wrap && "whitespace-pre-wrap wrap-anywhere")}>
          {coloured.map(({ scope, text }, at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: pieces have no other name
            <span key={at} className={COLOURS.find(([pattern]) => pattern.test(scope))?.[1]}>
              {text}
            </span>
          ))}
        </pre>
      </section>
    </div>
  );
}
