"""Works and receives with the client in Python: ``python3 work.py CLIENT SERVER SECRET``. Says what it sees, one object a line,
until its input ends."""

import json
import sys
import threading
import time
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

directory, url, secret = sys.argv[1:]
sys.path.insert(0, directory + "/src")

from countwheel import Client  # noqa: E402
from countwheel.receiver import DELIVERY, WSGIReceiver  # noqa: E402
from countwheel.worker import Nack, Worker  # noqa: E402

lock, seen = threading.Lock(), set()


def say(**what):
    with lock:
        print(json.dumps(what), flush=True)


def application(environ, start_response):
    delivery = environ[DELIVERY]
    time.sleep(0.04)
    if delivery.attempt == 1 and delivery.id.endswith("7"):
        say(refused=delivery.id)
        start_response("500 As told", [])
    else:
        say(handled=delivery.id)
        start_response("200 OK", [])
    return [b""]


receive = WSGIReceiver(application, verifier=secret)


def counted(environ, start_response):
    say(arrived=environ.get("HTTP_WEBHOOK_ID"))
    return receive(environ, start_response)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def work(job):
    time.sleep(0.04)
    key = job.lease["key"]
    say(worked=key)
    if key.endswith("3") and key not in seen:
        seen.add(key)
        raise RuntimeError("as told")


server = make_server("127.0.0.1", 0, counted, Server, Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
say(listens=f"http://127.0.0.1:{server.server_port}/hook")
sys.stdin.readline()
with Client(url) as client:
    worker = Worker(
        client,
        "pulled",
        work,
        concurrency=50,
        lease=1.0,
        wait=1.0,
        on_error=lambda error, job: Nack(in_="10ms", detail="as told"),
    )

    def stop():
        sys.stdin.read()
        worker.stop()

    threading.Thread(target=stop, daemon=True).start()
    worker.run()
say(stopped=True)
