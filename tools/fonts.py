# SPDX-License-Identifier: Apache-2.0
"""Text in pictures: draws each piece with the first font that has its glyphs. Not a tool itself.

DejaVu Sans has no Chinese, Japanese or Korean characters and no emoji. Other installed fonts draw them.
"""
import glob
import os
import unicodedata

from fontTools.ttLib import TTCollection, TTFont, TTLibError
from PIL import Image, ImageDraw, ImageFont, features

FIRST = "DejaVuSans.ttf"
# Parts of file names: the first of these draws a glyph that several fonts have.
PREFERRED = ("NotoColorEmoji", "NotoSansCJK", "NotoSans-Regular", "NotoSans", "wqy", "DroidSansFallback", "unifont")
BITMAP_SIZE = 109   # pixels, the only size of NotoColorEmoji's pictures
SHAPING = features.check("raqm")    # joins emoji of several code points


def folders():
    """Returns the folders of installed fonts."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return [os.path.join(data, "fonts"), os.path.expanduser("~/.fonts"), "/usr/local/share/fonts", "/usr/share/fonts",
            os.environ.get("TRAINER_PREFIX", "") + "/usr/share/fonts"]    # packages of tools/quickstart --prefix


def installed():
    """Returns font files, preferred ones first, the others by name."""
    found = [path for folder in folders() for kind in ("ttf", "otf", "ttc")
             for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", f"*.{kind}"), recursive=True))]

    def rank(path):
        name = os.path.basename(path).lower()
        return next((i for i, part in enumerate(PREFERRED) if part.lower() in name), len(PREFERRED))
    return sorted(dict.fromkeys(found), key=rank)


def joins(character):
    """True for code points that change the glyph before them: marks, variation selectors, joiners, skin tones, tags."""
    code = ord(character)
    return unicodedata.combining(character) != 0 or code in (0x200D, 0x20E3) or 0xFE00 <= code <= 0xFE0F or \
        0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F


class Face:
    """A font file: the characters it has, and its glyphs at any size."""

    def __init__(self, path):
        self.path = path
        if path.lower().endswith(".ttc"):
            with TTCollection(path, lazy=True) as collection:
                self.read(collection.fonts[0])
        else:
            with TTFont(path, lazy=True) as font:
                self.read(font)
        self.sizes = {}

    def read(self, font):
        self.characters = frozenset(font.getBestCmap() or ())
        self.bitmaps = "CBDT" in font

    def at(self, size):
        if size not in self.sizes:
            self.sizes[size] = ImageFont.truetype(self.path, BITMAP_SIZE if self.bitmaps else size)
        return self.sizes[size]

    def width(self, text, size):
        font = self.at(size)
        return font.getlength(text) * (size * 1.2 / BITMAP_SIZE if self.bitmaps else 1)

    def draw(self, canvas, draw, x, y, text, size, colour):
        font = self.at(size)
        if not self.bitmaps:
            draw.text((x, y), text, fill=colour, font=font)
            return
        left, top, right, bottom = font.getbbox(text)
        if right <= left or bottom <= top:
            return
        picture = Image.new("RGBA", (right - left, bottom - top), (255, 255, 255, 0))
        ImageDraw.Draw(picture).text((-left, -top), text, font=font, embedded_color=True)
        scale = size * 1.2 / BITMAP_SIZE
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), Image.LANCZOS)
        canvas.paste(picture, (round(x), round(y)), picture)


class Text:
    """Measures and draws text of one size."""

    faces = None        # shared by all sizes; read when the first font lacks a glyph
    missing = set()     # requested characters without a glyph in any font

    def __init__(self, size):
        self.size = size
        try:
            font = ImageFont.truetype(FIRST, size)
            self.first = Face(font.path)
        except OSError:
            self.first = None   # Pillow's own small font
        self.fallback = ImageFont.load_default()

    def line_height(self):
        return int((self.size if self.first else 11) * 1.35) + 1

    @classmethod
    def others(cls):
        if cls.faces is None:
            cls.faces = []
            for path in installed():
                try:
                    cls.faces.append(Face(path))
                except (TTLibError, OSError, AssertionError):
                    continue    # not a font, or unreadable: treated as absent
        return cls.faces

    def face_of(self, character):
        code = ord(character)
        if self.first is None or code in self.first.characters and code < 0x1F000 or code < 32:
            return self.first
        face = next((face for face in self.others() if code in face.characters), None)
        if face is None and code not in self.first.characters:
            Text.missing.add(character)
        return face or self.first

    def runs(self, text):
        """Returns (face, piece) for runs of characters that one font draws."""
        out = []
        for character in text:
            if out and joins(character):
                face = out[-1][0]
            else:
                face = self.face_of(character)
            if out and (out[-1][0] is face or out[-1][1].endswith("\u200d")):
                out[-1] = (out[-1][0], out[-1][1] + character)
            else:
                out.append((face, character))
        if not SHAPING:     # selectors would be drawn as glyphs of their own
            out = [(face, "".join(c for c in piece if not 0xFE00 <= ord(c) <= 0xFE0F)) for face, piece in out]
        return out

    def width(self, text):
        return sum(face.width(piece, self.size) if face else self.fallback.getlength(piece) for face, piece in self.runs(text))

    def draw(self, canvas, draw, x, y, text, colour):
        for face, piece in self.runs(text):
            if face:
                face.draw(canvas, draw, x, y, piece, self.size, colour)
                x += face.width(piece, self.size)
            else:
                draw.text((x, y), piece, fill=colour, font=self.fallback)
                x += self.fallback.getlength(piece)
