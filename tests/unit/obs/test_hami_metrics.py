"""Reading HAMi's metrics: names of all versions, files and addresses, and what goes wrong there."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from defragd.errors import ClusterError, ConfigError
from defragd.hami.scheduler_books import Entry
from defragd.obs import hami_metrics

NEW = """# HELP hami_gpu_memory_limit_bytes Device memory limit for a certain GPU
# TYPE hami_gpu_memory_limit_bytes gauge
hami_gpu_memory_limit_bytes{device_type="NVIDIA A10",device_uuid="g0",node="n1"} 2.5769803776e+10
hami_gpu_core_limit_ratio{device_type="NVIDIA A10",device_uuid="g0",node="n1"} 100
hami_gpu_shared_count{device_type="NVIDIA A10",device_uuid="g0",node="n1"} 2
hami_gpu_core_allocated_ratio{device_type="NVIDIA A10",device_uuid="g0",node="n1"} 15
hami_gpu_memory_allocated_bytes{device_cores="100",device_type="NVIDIA A10",device_uuid="g0",node="n1"} 1.4680064e+10
hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="g0",namespace="a",node="n1",pod="x"} 1.048576e+10
hami_vgpu_memory_allocated_bytes{container_index="1",device_uuid="g0",namespace="a",node="n1",pod="x"} 1.048576e+06
hami_vgpu_memory_allocated_bytes{container_index="0",device_uuid="g0",namespace="a",node="n2",pod="y"} 1.048576e+10
hami_build_info{version="v2.10.0"} 1
"""
OLD = """GPUDeviceMemoryLimit{deviceuuid="g0",nodeid="n1"} 2.5769803776e+10
GPUDeviceCoreLimit{deviceuuid="g0",nodeid="n1"} 100
GPUDeviceSharedNum{deviceuuid="g0",nodeid="n1"} 2
GPUDeviceCoreAllocated{deviceuuid="g0",nodeid="n1"} 15
GPUDeviceMemoryAllocated{devicecores="100",deviceuuid="g0",nodeid="n1"} 1.4680064e+10
vGPUMemoryAllocated{containeridx="0",deviceuuid="g0",nodename="n1",podname="x",podnamespace="a"} 1.048576e+10
"""
WANTED = Entry(memory_limit_mib=24576, core_limit=100, slots=2, memory_mib=14000, cores=15)


@pytest.mark.parametrize(("text", "held"), [(NEW, 10001), (OLD, 10000), (NEW.rstrip("\n"), 10001)])
def test_names_of_all_versions(tmp_path: Path, text: str, held: int) -> None:
    file = tmp_path / "metrics"
    file.write_text(text)
    page = hami_metrics.read(str(file))
    assert page.entries == {("n1", "g0"): WANTED}
    assert page.holders(("n1", "g0")) == {"a/x": held}
    assert page.holders(("n1", "g9")) == {}


def test_an_empty_page_of_hami_has_no_device(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text('hami_build_info{version="v2.10.0"} 1\n')
    assert not hami_metrics.read(str(file)).entries


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>not found</html>\n", "no metric of HAMi's scheduler"),
        ("", "no metric of HAMi's scheduler"),
        ('hami_gpu_shared_count{node="n1",device_uuid="g0" 2\n', "no exposition text"),
        ('hami_gpu_shared_count{node="n1",device_uuid="g0"} NaN\n', "no metric of HAMi's scheduler"),
    ],
)
def test_other_pages(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "metrics"
    file.write_text(text)
    with pytest.raises(ClusterError, match=words):
        hami_metrics.read(str(file))


@pytest.mark.parametrize("source", ["/nonexistent/metrics", "ftp://host/metrics"])
def test_no_such_source(source: str) -> None:
    with pytest.raises(ConfigError):
        hami_metrics.read(source)


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/hang":
                released.wait(5)
                return
            secret = self.headers.get("Authorization") == "Basic dTpw"
            found = {"/metrics": 200, "/secret": 200 if secret else 401}.get(self.path, 404)
            self.send_response(found)
            self.end_headers()
            if found == 200:
                self.wfile.write(NEW.encode())

        def log_message(self, *_: object) -> None:
            pass

    released = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{running.server_port}"
        released.set()
        running.shutdown()
        thread.join()


def test_over_http(server: str) -> None:
    assert hami_metrics.read(f"http://{server}/metrics").entries == {("n1", "g0"): WANTED}
    assert hami_metrics.read(f"http://u:p@{server}/secret").entries


@pytest.mark.parametrize(("path", "words"), [("secret", "HTTP 401"), ("other", "HTTP 404"), ("hang", "timed out")])
def test_http_troubles_are_one_line_without_secrets(server: str, path: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as error:
        hami_metrics.read(f"http://u:wrong@{server}/{path}", timeout=0.2)
    assert "wrong" not in str(error.value)
    assert "\n" not in str(error.value)


def test_nobody_listens() -> None:
    with pytest.raises(ClusterError, match="refused"):
        hami_metrics.read("http://127.0.0.1:9/metrics")
