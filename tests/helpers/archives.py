"""Small documents: archives of XML, as programs for them write these."""

import io
import zipfile

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
PICTURE = b"\x89PNG" + bytes(range(256))


def packed(parts, **how):
    """Returns an archive of files, given by their names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, **how) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return content.getvalue()


def unpacked(content):
    """Returns the files of an archive by their names."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def docx(body, **parts):
    """Returns a document of Word with this in its body, and a picture."""
    document = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return packed({"word/document.xml": document, "word/media/image1.png": PICTURE} | parts)


def pptx(body):
    """Returns a presentation of a single slide with this text."""
    return packed({"ppt/slides/slide1.xml": f'<p:sld xmlns:p="p" xmlns:a="{DRAWING}">{body}</p:sld>'})


def odt(body):
    """Returns a document of OpenDocument with this text."""
    content = f'<office:document-content xmlns:office="{OFFICE}" xmlns:text="{TEXT}">{body}</office:document-content>'
    return packed({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})


def epub(body):
    """Returns a book of one page with this in its body."""
    doctype = '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">'
    page = f'{doctype}<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>'
    return packed({"mimetype": "application/epub+zip", "OEBPS/page 1.xhtml": page})
