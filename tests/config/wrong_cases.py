"""The files that readers must refuse, from the documents wrong/TOPIC.txt and wrong_cluster/TOPIC.txt: wrong_cases.h."""
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def wrong_cases(folder):
    """(topic, title, the file's bytes) of each case, by topic and in the order of each document."""
    for document in sorted((HERE / folder).glob("*.txt")):
        for case in document.read_text().split("\n=== ")[1:]:
            if not case.startswith("errors\n"):
                title, text = (case + "\n").split("\n", 1)
                text = re.sub(r"\{byte (..)\}", lambda byte: chr(int(byte[1], 16)), text)
                yield document.stem, title, text.encode("latin-1")
