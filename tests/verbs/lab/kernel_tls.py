#!/usr/bin/env python3
"""Tries whether the kernel of a guest can take over the records of TLS 1.3 from OpenSSL, and what a job of Annulus uses.

  kernel_tls.py COMMAND...

Sends data over loopback, over OpenSSL's own socket layer, without and with SSL_OP_ENABLE_KTLS, and runs COMMAND, which encrypts
its connections. After each it prints how many connections the kernel has sealed and opened (/proc/net/tls_stat).
Exit status: 0 the kernel seals where OpenSSL is told to let it, and nowhere else.
"""

import resource
import socket
import ssl
import subprocess
import sys
import threading
import time

ENABLE_KTLS = 1 << 3  # SSL_OP_ENABLE_KTLS, which Python names from 3.12 on.
MEGABYTES = 16
CERTIFICATE = "/run/certificate"


def counts():
    """(connections that the kernel has begun to seal, to open)."""
    with open("/proc/net/tls_stat", encoding="ascii") as file:
        values = dict(line.split() for line in file)
    return int(values["TlsTxSw"]), int(values["TlsRxSw"])


def send(options):
    """Seconds and processor seconds of both ends."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(CERTIFICATE)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.options |= options
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server.wrap_socket(listener.accept()[0], server_side=True) as stream:
            left = MEGABYTES << 20
            while left > 0:
                left -= len(stream.recv(1 << 14))
            stream.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    with client.wrap_socket(socket.create_connection(listener.getsockname())) as stream:
        for _ in range(MEGABYTES):
            stream.sendall(bytes(1 << 20))
        stream.recv(1)
    thread.join()
    now = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic() - begin, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def tell(what, run):
    """Runs it, prints what it did, and returns how many connections the kernel has taken over."""
    before = counts()
    told = run()
    sealed, opened = (new - old for new, old in zip(counts(), before))
    print(f"{what}: the kernel seals {sealed} and opens {opened} connections{told}", flush=True)
    return sealed + opened


def main():
    subprocess.run(["modprobe", "tls"], check=True)
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=lab -days 1 -keyout /run/key -out /run/cert"
    subprocess.run(make.split(), check=True, stderr=subprocess.DEVNULL)
    subprocess.run(f"cat /run/key /run/cert >{CERTIFICATE}", shell=True, check=True)
    print(ssl.OPENSSL_VERSION)

    def sends(options):
        return lambda: "; {} MiB in {:.1f} s, {:.1f} s of processors".format(MEGABYTES, *send(options))

    plain = tell("OpenSSL's sockets", sends(0))
    told = tell("OpenSSL's sockets with SSL_OP_ENABLE_KTLS", sends(ENABLE_KTLS))

    def job():
        subprocess.run(sys.argv[1:], check=True)
        return ""

    ours = tell("Annulus, ANNULUS_ENCRYPT=required", job)
    return 0 if plain == 0 and told > 0 and ours == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
