"""A Jupyter kernel that runs each cell by the shell: a language of its own, as small as can be."""

import subprocess

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel


class ShellKernel(Kernel):
    implementation = "shell"
    implementation_version = "1"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh"}  # noqa: RUF012
    banner = "a shell"

    def do_execute(self, code, silent, *_, **__):
        done = subprocess.run(["/bin/sh", "-c", code], capture_output=True, text=True, check=False)
        for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            if text and not silent:
                self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=ShellKernel)
