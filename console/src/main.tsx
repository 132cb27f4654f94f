import { CSPProvider } from "@base-ui/react/csp-provider";
import { StrictMode, Suspense, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter, Navigate, Route, Routes } from "react-router";
import { accounts, isSignedOut } from "./api/client";
import { type Problem, problemOf } from "./api/problem";
import type { User } from "./gen/retinue/manager/v1/account_service_pb";
import { SessionStore } from "./live/store";
import { Trouble } from "./parts/basics";
import { CallerContext } from "./parts/caller";
import { Shell } from "./parts/shell";
import { StoreContext } from "./parts/store";
import "./parts/theme";
import "./design/tokens.css";
import { lazy } from "./parts/lazy";
import { markDocument, t } from "./text/language";

const Login = lazy(() => import("./pages/login"));
const Home = lazy(() => import("./pages/home"));
const Sessions = lazy(() => import("./pages/sessions"));
const NewSession = lazy(() => import("./pages/new"));
const SessionPage = lazy(() => import("./pages/session"));
const Queue = lazy(() => import("./pages/queue"));
const Nodes = lazy(() => import("./pages/nodes"));
const Fairness = lazy(() => import("./pages/fairness"));
const Endpoints = lazy(() => import("./pages/endpoints"));
const NewEndpoint = lazy(() => import("./pages/endpoint/new"));
const EndpointPage = lazy(() => import("./pages/endpoint"));
const Files = lazy(() => import("./pages/files"));
const Templates = lazy(() => import("./pages/templates"));
const Quotas = lazy(() => import("./pages/quotas"));
const Groups = lazy(() => import("./pages/groups"));
const Accounts = lazy(() => import("./pages/accounts"));
const Projects = lazy(() => import("./pages/projects"));
const Audit = lazy(() => import("./pages/audit"));

function SignedIn() {
  const [caller, setCaller] = useState<User>();
  const [problem, setProblem] = useState<Problem>();
  const [turn, setTurn] = useState(0);
  const [store] = useState(() => new SessionStore());
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` asks again
  useEffect(() => {
    accounts.getCaller({}).then(
      ({ user }) => {
        setProblem(undefined);
        setCaller(user);
      },
      (error) => {
        if (isSignedOut(error)) location.assign("/login");
        else setProblem(problemOf(error));
      },
    );
  }, [turn]);
  const name = caller?.name;
  useEffect(() => {
    if (name === undefined) return;
    void store.run();
  }, [name, store]);
  if (caller === undefined) {
    return (
      <main>
        {problem ? <Trouble problem={problem} retry={() => setTurn(turn + 1)} /> : <p role="status">{t("loading")}</p>}
      </main>
    );
  }
  return (
    <CallerContext value={caller}>
      <StoreContext value={store}>
        <Shell />
      </StoreContext>
    </CallerContext>
  );
}

function NotFound() {
  return <h1>{t("notFound")}</h1>;
}

markDocument();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      {/* The pages' policy takes no style that a script writes as text. */}
      <CSPProvider disableStyleElements>
        <BrowserRouter>
          <Suspense fallback={<p role="status">{t("loading")}</p>}>
            <Routes>
              <Route path="/login" element={<Login />} />
              <Route element={<SignedIn />}>
                <Route index element={<Navigate to="/home" replace />} />
                <Route path="home" element={<Home />} />
                <Route path="sessions" element={<Sessions />} />
                <Route path="sessions/new" element={<NewSession />} />
                <Route path="sessions/:id/:tab?" element={<SessionPage />} />
                <Route path="queue" element={<Queue />} />
                <Route path="cluster" element={<Nodes />} />
                <Route path="fairness" element={<Fairness />} />
                <Route path="endpoints" element={<Endpoints />} />
                <Route path="endpoints/new" element={<NewEndpoint />} />
                <Route path="endpoints/:id/:tab?" element={<EndpointPage />} />
                <Route path="files" element={<Files />} />
                <Route path="templates" element={<Templates />} />
                <Route path="quotas" element={<Quotas />} />
                <Route path="groups" element={<Groups />} />
                <Route path="accounts" element={<Accounts />} />
                <Route path="projects" element={<Projects />} />
                <Route path="audit" element={<Audit />} />
                <Route path="*" element={<NotFound />} />
              </Route>
            </Routes>
          </Suspense>
        </BrowserRouter>
      </CSPProvider>
    </StrictMode>,
  );
}
