import { toJson } from "@bufbuild/protobuf";
import { sessions } from "../../api/client";
import { type Session, SessionSpecSchema } from "../../gen/retinue/manager/v1/session_pb";
import { CopyButton, Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { commandsFor } from "../../spec/commands";

/** What was asked for, as messages of the API and as commands. */
export default function Spec({ session }: { session: Session }) {
  const found = useLoaded(`spec ${session.id}`, async (signal) => {
    return (await sessions.getSession({ session: session.id }, { signal })).session?.spec;
  });
  const spec = found.value;
  if (spec === undefined) return <Trouble problem={found.problem} retry={found.reload} />;
  const json = JSON.stringify(toJson(SessionSpecSchema, spec), undefined, 2);
  const { cli, python } = commandsFor(spec);
  return (
    <>
      {[
        ["JSON", json],
        ["CLI", cli],
        ["Python", python],
      ].map(([name, text = ""]) => (
        <section key={name} aria-label={name}>
          <h2>{name}</h2>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
          <pre tabIndex={0}>{text}</pre>
          <CopyButton text={text} />
        </section>
      ))}
    </>
  );
}
