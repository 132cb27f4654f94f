"""Apps of the catalogue, each started as its page says, opened through the gateway in Chromium and used by clicks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.sessions.browser import Page, page
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Made by scripts/install, by the Python that native processes see.
INSTALLED = "/var/cache/retinue"
PATH = (
    f"{INSTALLED}/apps/bin:{INSTALLED}/vite/node_modules/.bin:{INSTALLED}/jupyterlab/bin:/usr/local/bin:/usr/bin:/bin"
)
# What pages of several frameworks have in common: some draw in shadows, some in canvases, all have words.
LIBRARY = """
    window.everything = root => [...root.querySelectorAll('*')]
        .flatMap(one => one.shadowRoot ? [one, ...everything(one.shadowRoot)] : [one]);
    window.words = one => [one.innerText, one.value, one.ariaLabel, one.title, one.dataset?.testid]
        .filter(text => typeof text === 'string').map(text => text.trim().toLowerCase());
    window.named = name => everything(document)
        .filter(one => one.getClientRects().length && words(one).includes(name.toLowerCase())).at(-1);
    window.shown = () => everything(document).flatMap(words).join('\\n');
"""
STREAMLIT = """
import streamlit as st
count = st.session_state.setdefault("count", 0)
if st.button("More"):
    st.session_state.count = count = count + 1
st.write(f"clicked {count} times at {st.context.headers['Host']}")
given = st.file_uploader("a file")
if given is not None:
    st.write(f"{given.name} has {len(given.getvalue())} bytes")
"""
GRADIO = """
import time
import gradio as gr
def count(so_far):
    for part in ("one", "two"):
        yield so_far, f"part {part}"
        time.sleep(0.1)
    yield so_far + 1, f"clicked {so_far + 1} times"
with gr.Blocks() as demo:
    so_far, words = gr.State(0), gr.Textbox(label="Said")
    gr.Button("More").click(count, so_far, [so_far, words])
demo.launch()
"""
TENSORBOARD = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
for run in ("first", "second"):
    writer = EventFileWriter(f"runs/{run}")
    for step in range(20):
        value = Summary.Value(tag="loss of a model", simple_value=1 / (step + 1))
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=[value])))
    writer.close()
"""
MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    button = mo.ui.button(value=0, on_click=lambda count: count + 1, label="More")
    button
    return button, mo


@app.cell
def _(button, mo):
    mo.md(f"clicked {button.value} times")
    return
"""
VITE = {
    "index.html": '<p id="said"></p><button>More</button><script type="module" src="/main.js"></script>',
    "words.js": 'export const words = "first";',
    "main.js": """
        import { words } from "./words.js";
        let count = 0, current = words;
        const show = () => { document.querySelector("#said").textContent = `${current} ${count}`; };
        document.querySelector("button").onclick = () => { count += 1; show(); };
        show();
        import.meta.hot.accept("./words.js", module => { current = module.words; show(); });
    """,
}
# Sends a file, as the pages of Jupyter do, with the value of a cookie that only pages of its own server know.
UPLOAD = """
    fetch("/api/contents/made", {
        method: "PUT",
        headers: {"X-XSRFToken": document.cookie.match("(?:^|; )_xsrf=([^;]+)")[1]},
        body: JSON.stringify({type: "file", format: "text", content: "x"}),
    }).then(answer => answer.status)
"""
# Answers within a kernel, of a program that has ended its own start.
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
MLFLOW = """
import mlflow
mlflow.set_tracking_uri("sqlite:///runs.db")
mlflow.set_experiment("of-retinue")
with mlflow.start_run(run_name="first-run"):
    mlflow.log_metric("loss", 0.25)
"""


@pytest_asyncio.fixture(loop_scope="session")
async def browser() -> AsyncIterator[Page]:
    async with page() as found:
        yield found


async def opened(shell: Shell, browser: Page, app: str, *arguments: str, files: dict[str, str] | None = None) -> None:
    """Starts an app in a session of its own, with these files beside it, and opens it. `prepare.py` runs before."""
    await started(shell, app, *arguments, files=files or {})
    await navigate(shell, browser, app)


async def started(shell: Shell, app: str, *arguments: str, files: dict[str, str]) -> None:
    await shell(f"retinue run -d -q --type interactive -n web -e PATH={PATH} --slots cpu=1,mem=1500m --app {app}")
    await shell("retinue wait web --for running")
    for name, text in files.items():
        (shell.directory / name).write_text(text)
        await shell(f"retinue cp {name} web:{name}")
    if "prepare.py" in files:
        await shell("retinue exec web -- python prepare.py")
    ran = await shell.run(" ".join(("retinue app start web", app, *arguments)))
    assert ran.code == 0, (ran, await shell.run(f"retinue app logs web {app}"))
    assert re.search(rf"{app} +running", await shell("retinue app ls web"))


async def navigate(shell: Shell, browser: Page, app: str) -> None:
    await browser.send("Page.addScriptToEvaluateOnNewDocument", source=LIBRARY)
    await browser.send("Page.enable")
    await browser.send("Page.navigate", url=(await shell(f"retinue open web {app}")).strip())


async def click(browser: Page, name: str) -> None:
    await click_on(browser, f"named({name!r})")


async def click_on(browser: Page, element: str) -> None:
    """Clicks on what an expression stands for, once it is there and takes clicks."""
    await browser.until(f"(one => one && !one.disabled && (one.click(), true))({element})")


async def click_until(browser: Page, element: str, effect: str) -> None:
    """Clicks until that has its effect: a page that is still being built drops clicks."""
    await browser.until(f"Boolean({effect}) || (one => (one?.click(), false))({element})")


async def shows(browser: Page, text: str) -> None:
    await browser.until(f"shown().includes({text.lower()!r})")


async def test_streamlit(shell: Shell, browser: Page) -> None:
    await opened(shell, browser, "streamlit", "page.py", files={"page.py": STREAMLIT})
    for count in range(3):
        await shows(browser, f"clicked {count} times at p8501-")
        await click(browser, "More")
    await shows(browser, "clicked 3 times")
    (shell.directory / "given.bin").write_bytes(bytes(3 << 20))
    document = await browser.send("DOM.getDocument", depth=-1)
    found = await browser.send("DOM.querySelector", nodeId=document["root"]["nodeId"], selector="input[type=file]")
    await browser.send("DOM.setFileInputFiles", nodeId=found["nodeId"], files=[str(shell.directory / "given.bin")])
    await shows(browser, f"given.bin has {3 << 20} bytes")


async def test_gradio(shell: Shell, browser: Page) -> None:
    await opened(shell, browser, "gradio", "demo.py", files={"demo.py": GRADIO})
    for count in range(1, 4):
        await click(browser, "More")
        await shows(browser, f"clicked {count} times")


async def test_tensorboard(shell: Shell, browser: Page) -> None:
    await started(shell, "tensorboard", "--logdir", "runs", files={"prepare.py": TENSORBOARD})
    # It answers before it has read its files, and its page asks once.
    ask = f"retinue exec web -- python -c '{ASK}' http://127.0.0.1:6006/data/runs"
    await eventually(lambda: shell(ask), lambda text: json.loads(text) == ["first", "second"])
    await navigate(shell, browser, "tensorboard")
    await shows(browser, "loss of a model")
    tab = "everything(document).find(one => one.classList.contains('plugin-name') && words(one).includes({!r}))"
    await click_until(browser, tab.format("scalars"), "location.hash === '#scalars' && named('loss of a model')")
    await click_until(browser, tab.format("time series"), "location.hash === '#timeseries' && named('loss of a model')")
    await click(browser, "Histogram")
    # The page of scalars, which is kept beside, has it still.
    await browser.until("!document.body.innerText.includes('loss of a model')")


async def test_marimo(shell: Shell, browser: Page) -> None:
    await opened(shell, browser, "marimo", "notebook.py", files={"notebook.py": MARIMO})
    # Its buttons are there before its websocket is.
    await browser.until("document.querySelector('[data-testid=backend-status] .lucide-circle-check') !== null")
    # The last one is for all cells.
    await click_on(browser, "[...document.querySelectorAll('[data-testid=run-button]')].at(-1)")
    for count in range(3):
        await shows(browser, f"clicked {count} times")
        await click(browser, "More")
    await shows(browser, "clicked 3 times")


async def test_vite_replaces_what_changes_in_a_page(shell: Shell, browser: Page) -> None:
    await opened(shell, browser, "vite", files=VITE)
    for count in range(3):
        await shows(browser, f"first {count}")
        await click(browser, "More")
    # It keeps what the page has, as the code goes there by a websocket.
    (shell.directory / "words.js").write_text('export const words = "second";')
    await shell("retinue cp words.js web:words.js")
    await shows(browser, "second 3")


async def test_apps_beside_each_other_have_cookies_of_their_own(shell: Shell, browser: Page) -> None:
    server = "jupyter server --no-browser --ip=127.0.0.1 --port={port} --IdentityProvider.token="
    await shell(
        f"retinue run -d -q --type interactive -n web -e PATH={PATH} --slots cpu=1,mem=1g "
        f"--port one:http:8001:host=localhost --app 'one={server}' --port two:http:8002:host=localhost --app 'two={server}'"
    )
    await shell("retinue wait web --for running; retinue app start web one; retinue app start web two")
    pages = list[str]()
    for app in ("one", "two"):
        pages.append(await browser.open())
        await navigate(shell, browser, app)
        await browser.until("document.cookie.includes('_xsrf=')")
    found = set[str]()
    for page_ in (*pages, *pages):
        browser.show(page_)
        assert await browser.evaluate(UPLOAD) in (200, 201)
        found.add(await browser.evaluate("document.cookie.match('_xsrf=([^;]+)')[1]"))
    assert len(found) == len(pages)


async def test_mlflow(shell: Shell, browser: Page) -> None:
    arguments = ("--backend-store-uri", "sqlite:///runs.db", "--workers", "1")
    await opened(shell, browser, "mlflow", *arguments, files={"prepare.py": MLFLOW})
    await click(browser, "of-retinue")
    await click(browser, "Model training")
    await click(browser, "Runs")
    await click(browser, "first-run")
    await shows(browser, "0.25")
