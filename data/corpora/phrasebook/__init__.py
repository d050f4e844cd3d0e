"""Phrasebook: a built-in English to French corpus, generated from a synchronous grammar and lexicon.

`generate(seed)` draws some 50,000 sentence pairs, the same on every machine, with nothing to download. The French is
a function of the English: every English sentence has exactly one translation, which a small model can learn from the
training split alone. What decides a word may stand elsewhere in the sentence (bank, bat, spring, it), so attention
pays off.

Splits
    train       distinct pairs in random order, without any held-out combination
    validation  sentences that train does not contain; 55% of them have at least one (verb, object) or
    test        (adjective, noun) combination that train never contains (more than the 40% promised; tested)
    contrasts   pairs of sentences that differ in one English word, the one that decides how another word is
                translated; neither sentence stands in another split

Conventions (one right French for every English sentence)
    - you is the polite singular vous, with masculine singular agreement: vous êtes fatigué.
    - I is a man, we are men or a mixed company; they (without antecedent) is ils: nous sommes arrivés.
    - A noun keeps its dictionary gender (le professeur, l'infirmière); a friend is ami, but my friend Marie mon amie.
    - Simple present and present progressive are both the French présent: she eats, she is eating - elle mange.
    - The simple past is the passé composé. Was, were, had, knew and was eating are imparfait: était, avait, mangeait.
    - They read, they cut (present or past in English) is past; the present is they are reading, they are cutting.
    - Going to is futur proche: va manger. Can, must, want to are pouvoir, devoir, vouloir.
    - Sits, lies and is sitting say a posture: est assis, est couché; sat and lay the movement: s'est assis.
    - A noun without article is partitive (eats fish: du poisson; apples: des pommes), after a negation de (pas de
      poisson), before an adjective in front of a plural noun de too (de beaux livres); after like, love and hate it
      is general (likes fish: le poisson).
    - A question begins with est-ce que (only where is ... ? is où est ... ?), and an ordinary space (U+0020) stands
      before the question mark. The apostrophe is the straight one.
    - A pronoun object stands before the verb; the participle agrees with it: je l'ai vue; me and you masculine
      singular, us and them masculine plural unless the sentence says what they are.
    - It takes the gender of the noun that the predicate fits: animals are tired or hungry, carpets are soft.
    - After because, a past state is said in the imparfait: parce qu'il était fatigué, parce qu'elle avait faim.
    - His and her are both son, sa, ses; this and that both ce; big is grand, small petit, short petit of people and
      court of things; carpet and mat are both tapis; instruments are played without article (plays guitar).
    - To go (swim, row, walk, run) across X is traverser X (à la nage, à la rame, à pied, en courant); to get to is
      pour atteindre. To visit is rendre visite à of people and visiter of places; to bring is amener of people and
      animals and apporter of things.

Modules: `morphology` (forms), `lexicon` (words), `phrases` (noun phrases and clauses), `draw` (random choice),
`puzzles`, `banks`, `anaphora`, `ambiguity` (what context decides), `grammar` (templates), `splits` (who goes where).
"""

import hashlib
from pathlib import Path

from .phrases import Pair
from .puzzles import Contrast
from .splits import Phrasebook, build

__all__ = ["Contrast", "Pair", "Phrasebook", "generate", "source_digest"]


def generate(seed: int = 0) -> Phrasebook:
    """Generate all splits; the same seed gives the same phrasebook on every machine."""
    return build(seed)


def source_digest() -> str:
    """SHA-256 over the generator's own source files, for the keys of caches."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
