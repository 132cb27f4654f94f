"""Apps of the catalogue, each started as its page says, opened through the gateway in Chromium and used by clicks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.sessions.browser import Page, page
from tests.support.login import Shell

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Made by scripts/install, by the Python that native processes see.
PATH = "/var/cache/retinue/apps/bin:/usr/local/bin:/usr/bin:/bin"
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
    """Starts an app in a session of its own, with these files beside it, and opens it."""
    await shell(f"retinue run -d -q --type interactive -n web -e PATH={PATH} --slots cpu=1,mem=1500m --app {app}")
    await shell("retinue wait web --for running")
    for name, text in (files or {}).items():
        (shell.directory / name).write_text(text)
        await shell(f"retinue cp {name} web:{name}")
    started = await shell.run(" ".join(("retinue app start web", app, *arguments)))
    assert started.code == 0, (started, await shell.run(f"retinue app logs web {app}"))
    assert re.search(rf"{app} +running", await shell("retinue app ls web"))
    await browser.send("Page.addScriptToEvaluateOnNewDocument", source=LIBRARY)
    await browser.send("Page.enable")
    await browser.send("Page.navigate", url=(await shell(f"retinue open web {app}")).strip())


async def click(browser: Page, name: str) -> None:
    await browser.until(f"named({name!r}) !== undefined && (named({name!r}).click(), true)")


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


async def test_mlflow(shell: Shell, browser: Page) -> None:
    arguments = ("--backend-store-uri", "sqlite:///runs.db", "--workers", "1")
    await opened(shell, browser, "mlflow", *arguments, files={"prepare.py": MLFLOW})
    await click(browser, "of-retinue")
    await click(browser, "Model training")
    await click(browser, "Runs")
    await click(browser, "first-run")
    await shows(browser, "0.25")
