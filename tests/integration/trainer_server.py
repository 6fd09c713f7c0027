"""The status server of Kubeflow Trainer, as far as a pod sees it: HTTPS under a CA of its own, and a bearer token.

    trainer_server.py FOLDER ADDRESS    serves until it is ended; for hosts of their own (two_hosts.sh run)
"""
import http.server
import json
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/first/status"


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def make_certificates(folder, address):
    """A CA, `ca.crt`, and a server's certificate that it has signed, `server.crt`, for one address."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *key, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=test CA")
    openssl("req", *key[:-2], "-keyout", folder / "server.key", "-out", folder / "server.csr", "-subj", "/CN=trainer")
    (folder / "names").write_text(f"subjectAltName=IP:{address},DNS:localhost\n")
    openssl("x509", "-req", "-in", folder / "server.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", folder / "names", "-out", folder / "server.crt")


class TrainerServer:
    """Writes each post into posts.jsonl, with its token. `answer`: its status; 0: it never answers. `certified`: the address
    in its certificate, if that is another one."""

    def __init__(self, folder, address="127.0.0.1", answer=200, certified=None):
        self.folder, self.answer = Path(folder), answer
        self.folder.mkdir(exist_ok=True)
        make_certificates(self.folder, certified or address)
        self.give_token("first-token")
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802 (the name is Python's)
                owner.take(self)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # a client that refuses the certificate

        self.server = Server((address, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://{address}:{self.server.server_address[1]}{PATH}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def give_token(self, token):
        (self.folder / "token").write_text(token + "\n")

    def take(self, request):
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        post = {"time": time.monotonic(), "path": request.path, "token": request.headers["Authorization"],
                "type": request.headers["Content-Type"], "host": request.headers["Host"], "body": body}
        with open(self.folder / "posts.jsonl", "a") as file:
            file.write(json.dumps(post) + "\n")
        if self.answer == 0:
            time.sleep(600)
        text = json.dumps(body if self.answer == 200 else {"kind": "Status", "message": "the token is of another pod"})
        request.send_response(self.answer)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text.encode())

    def variables(self):
        return {"KUBEFLOW_TRAINER_SERVER_URL": self.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.folder / "token"),
                "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.folder / "ca.crt")}

    def posts(self):
        return read_posts(self.folder)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def read_posts(folder):
    file = Path(folder) / "posts.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


if __name__ == "__main__":
    served = TrainerServer(sys.argv[1], sys.argv[2])
    (served.folder / "url").write_text(served.url)
    served.thread.join()
