"""The settings that docs/serve.md recommends for the open internet, read from that page: each line works as described."""

import pathlib
import re
import subprocess

from memcache import certificate
from world import check, expect, expect_equal, free_port, wait_for

PAGE = pathlib.Path(__file__).parents[3] / "docs/serve.md"
CLIENT, PROXY = "192.0.2.7", "127.0.0.1"


def shown(first_line):
    """Block of the page that begins with this line."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if block.startswith(first_line)]
    expect_equal("blocks of docs/serve.md that begin so", len(found), 1)
    return found[0]


@check("uring", "event", "thread", "pipeline", limit_s=90)
def the_shown_settings_of_hosts_do_what_they_say(world):
    folder, port, plain = world.scratch, free_port(), free_port()
    text = shown('listen = ":443"\n')
    for old, new in (("/etc/weft/", f"{folder}/"), ("/srv/", f"{folder}/"), ('":443"', f'"127.0.0.1:{port}"'),
                     ('":80"', f'"127.0.0.1:{plain}"'), ('"redirects.txt"', f'"{folder}/redirects.txt"'), ("10.0.0.5", PROXY)):
        expect(old in text, f"{old} is not in the block")
        text = text.replace(old, new)
    _, chain, key = certificate(folder)
    (folder / "example.pem").write_text(chain.read_text() + key.read_text())
    (folder / "redirects.txt").write_text("/old/* /new/:splat\n")
    words = re.search(r"# (htpasswd .*)", text)[1].split()
    subprocess.run([words[0], "-i", *words[1:]], input=b"lovelace\n", check=True, capture_output=True)
    site = folder / "example"
    (site / "private").mkdir(parents=True)
    (site / "about.html").write_text("<p>about</p>\n" * 500)
    (site / "private/plan.txt").write_text("plan\n")
    (folder / "serve.toml").write_text(text)
    log = folder / "access.log"

    def ask(url, *more):
        name = url.split("/")[2].split(":")[0]
        resolve = [word for at in (port, plain) for word in ("--resolve", f"{name}:{at}:127.0.0.1")]
        head = world.output_of("curl", "-sk", "--http1.1", "-o", "/dev/null", "-D", "-", *resolve, *more, url).decode()
        return head.replace("\r", "")

    def expect_lines(url, *lines, more=()):
        head = ask(url, *more)
        for line in lines:
            expect(f"{line}\n" in head, f"{url}: {line} is not in {head}")

    https, http = f"https://example.org:{port}", f"http://example.org:{plain}"
    with world.server("--config", folder / "serve.toml", "--access-log", log, listen=()):
        expect_lines(f"{http}/about?a=b", "HTTP/1.1 301 Moved Permanently", f"Location: {https}/about?a=b")
        expect_lines(f"{https}/about", "HTTP/1.1 200 OK", "Strict-Transport-Security: max-age=31536000")
        expect_lines(f"{https}/about.html", "HTTP/1.1 301 Moved Permanently", "Location: /about")
        expect_lines(f"{https}/old/a", "HTTP/1.1 301 Moved Permanently", "Location: /new/a")
        expect_lines(f"https://www.example.org:{port}/about", f"Location: //example.org:{port}/about")
        expect_lines(f"https://a.example.org:{port}/about", "HTTP/1.1 200 OK")
        expect_lines(f"{https}/private/plan.txt", "HTTP/1.1 401 Unauthorized")
        expect_lines(f"{https}/private/plan.txt", "HTTP/1.1 200 OK", more=("-u", "ada:lovelace"))
        expect_lines(f"{https}/private/plan.txt", "HTTP/1.1 401 Unauthorized", more=("-u", "ada:byron"))
        coded = ("-H", "Accept-Encoding: br")
        wait_for("about.html is compressed", lambda: "Content-Encoding: br\n" in ask(f"{https}/about", *coded))
        ask(f"{https}/about?named", "-H", f"X-Forwarded-For: 6.6.6.6, {CLIENT}")
        named = wait_for("it is logged", lambda: [line for line in log.read_text().splitlines() if "?named" in line])
        expect_equal("the client in the log", named[0].split(" ")[0], CLIENT)
