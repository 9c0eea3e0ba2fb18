"""Servers by others, with their own record of the requests."""

import re
import socket

from world import free_port, wait_for


class nginx:
    """nginx with one process, which logs path, agent and status of every request."""

    def __init__(self, world, folder=None, more="", host="127.0.0.1", wrap=(), how=""):
        self.world, self.port, self.more, self.how = world, free_port(), more, how
        self.host, self.wrap = host, wrap
        self.folder = folder or world.folder("nginx", a__txt=b"some text\n" * 40)
        self.log = world.scratch / "access.log"

    def __enter__(self):
        config = self.world.scratch / "nginx.conf"
        config.write_text(f"""
daemon off; master_process off; pid {self.world.scratch}/nginx.pid; error_log {self.world.scratch}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 16000; }}
http {{
    types {{ text/html html; }}
    log_format seen '$uri $http_user_agent $status';
    access_log {self.log} seen;
    keepalive_requests 1000000000;
    {self.more}
    client_body_temp_path {self.world.scratch}; proxy_temp_path {self.world.scratch};
    fastcgi_temp_path {self.world.scratch}; uwsgi_temp_path {self.world.scratch}; scgi_temp_path {self.world.scratch};
    server {{ listen {self.host}:{self.port} {self.how}; root {self.folder}; }}
}}""")
        self.process = self.world.start(*self.wrap, "nginx", "-p", self.world.scratch, "-c", config)
        # nginx listens before it writes its pid.
        wait_for("nginx listens", (self.world.scratch / "nginx.pid").exists)
        return f"http://{self.host}:{self.port}", self.log

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class memcached:
    """The original memcached, and its statistics."""

    def __init__(self, world, *flags, host="127.0.0.1", wrap=()):
        self.world, self.port = world, free_port()
        self.flags, self.host, self.wrap = flags, host, wrap

    def __enter__(self):
        self.process = self.world.start(*self.wrap, "memcached", "-u", "root", "-l", self.host, "-p", self.port, "-c", 20000, "-m", 512,
                                        *self.flags)
        listens = (*self.wrap, "ss", "-Hltn", f"sport = :{self.port}")
        wait_for("memcached listens", lambda: self.world.output_of(*listens))
        return self

    def stats(self):
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(b"stats\r\nquit\r\n")
            text = connection.makefile().read()
        return dict(re.findall(r"STAT (\S+) (\S+)", text))

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
