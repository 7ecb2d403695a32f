#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes requests.jsonl beside this file: what scripts/demo runs.

Every prompt begins with the same text, as the prompts of a chat service begin with its instructions,
and goes on with a verse of its own. Psalm 23 and the first chapter of Genesis are from the King James
Bible (public domain), which is all that the shipped model knows.
"""

import json
import pathlib

SYSTEM = """\
Ge1:1 In the beginning God created the heaven and the earth.
Ge1:2 And the earth was without form, and void; and darkness was upon the face of the deep. And the \
Spirit of God moved upon the face of the waters.
Ge1:3 And God said, Let there be light: and there was light.
Ge1:4 And God saw the light, that it was good: and God divided the light from the darkness.
Ge1:5 And God called the light Day, and the darkness he called Night. And the evening and the morning \
were the first day.
Psa23:1 The LORD is my shepherd; I shall not want.
Psa23:2 He maketh me to lie down in green pastures: he leadeth me beside the still waters.
Psa23:3 He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.
Psa23:4 Yea, though I walk through the valley of the shadow of death, I will fear no evil: for thou art \
with me; thy rod and thy staff they comfort me.
Psa23:5 Thou preparest a table before me in the presence of mine enemies: thou anointest my head with \
oil; my cup runneth over.
"""
VERSES = {
    "genesis": "Ge1:6 And God said, Let there be ",
    "exodus": "Exo20:1 And God spake all these words, saying, ",
    "joshua": "Josh6:20 So the people shouted when the priests blew with the trumpets: ",
    "samuel": "1Sm17:45 Then said David to the Philistine, ",
    "kings": "1Ki3:9 Give therefore thy servant an understanding heart ",
    "job": "Job38:1 Then the LORD answered Job out of the whirlwind, and said, ",
    "psalm": "Psa23:6 Surely goodness and mercy ",
    "proverbs": "Prv1:7 The fear of the LORD is the beginning of ",
    "preacher": "Eccl3:1 To every thing there is a season, and ",
    "isaiah": "Isa40:31 But they that wait upon the LORD shall ",
    "jeremiah": "Jer1:4 Then the word of the LORD came unto me, saying, ",
    "daniel": "Dan6:22 My God hath sent his angel, and hath shut the lions' mouths, ",
    "matthew": "Mat5:3 Blessed are the poor in spirit: for ",
    "luke": "Luke2:10 And the angel said unto them, Fear not: for, behold, ",
    "john": "John1:1 In the beginning was the Word, and ",
    "acts": "Acts2:2 And suddenly there came a sound from heaven ",
    "corinthians": "1Cor13:13 And now abideth faith, hope, charity, ",
    "revelation": "Rev21:1 And I saw a new heaven and a new earth: for ",
}


def requests():
    for name, verse in VERSES.items():
        request = {"id": name, "prompt": SYSTEM + verse, "max_new_tokens": 96}
        if name == "proverbs":
            request |= {"samples": 4, "temperature": 0.8, "top_p": 0.95, "seed": 7}
        elif name == "revelation":
            request |= {"beams": 4}
        elif name in ("job", "luke", "acts"):
            request |= {"temperature": 0.7, "seed": 11}
        yield request


def main():
    lines = [json.dumps(request) + "\n" for request in requests()]
    pathlib.Path(__file__).with_name("requests.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
