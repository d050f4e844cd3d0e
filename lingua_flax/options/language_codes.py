"""Codes of languages, which are written in several ways: pt, pt-BR, pt_BR and por are one language."""

import re

# Those of ISO 639-2 and 639-3 for languages with a code of two letters, and withdrawn ones.
_OTHER_CODES = """
af:afr am:amh an:arg ar:ara,arb as:asm az:aze,azj ba:bak be:bel bg:bul bn:ben bo:bod,tib br:bre bs:bos ca:cat
cs:ces,cze cy:cym,wel da:dan de:deu,ger dz:dzo el:ell,gre en:eng eo:epo es:spa et:est,ekk eu:eus,baq fa:fas,per,pes
fi:fin fo:fao fr:fra,fre fy:fry ga:gle gd:gla gl:glg gu:guj ha:hau he:heb,iw hi:hin hr:hrv ht:hat hu:hun hy:hye,arm
id:ind,in ig:ibo is:isl,ice it:ita ja:jpn jv:jav,jw ka:kat,geo kk:kaz km:khm kn:kan ko:kor ku:kur,kmr ky:kir la:lat
lb:ltz lg:lug ln:lin lo:lao lt:lit lv:lav,lvs mg:mlg,plt mk:mkd,mac ml:mal mn:mon,khk mr:mar ms:msa,may,zsm mt:mlt
my:mya,bur ne:nep,npi nl:nld,dut nn:nno no:nor,nb,nob oc:oci om:orm,gaz or:ori,ory pa:pan pl:pol ps:pus,pbu pt:por
qu:que,quz ro:ron,rum,mo ru:rus rw:kin sa:san se:sme si:sin sk:slk,slo sl:slv sn:sna so:som sq:sqi,alb,als sr:srp,sh
st:sot sv:swe sw:swa,swh ta:tam te:tel tg:tgk th:tha tk:tuk tl:tgl,fil tr:tur tt:tat ug:uig uk:ukr ur:urd uz:uzb,uzn
vi:vie vo:vol wa:wln xh:xho yi:yid,ji yo:yor zh:zho,chi,cmn zu:zul
"""
_CODE_OF = {
    other: code for code, others in (own.split(":") for own in _OTHER_CODES.split()) for other in others.split(",")
}


def language_code(language: str) -> str:
    """Returns the shortest code of a language, without script and region: "pt" of "pt-BR", "pt_BR" and "por"."""
    code = re.split("[-_]", language.lower())[0]
    return _CODE_OF.get(code, code)
