"""The bilingual lexicon: nouns, adjectives, verbs, names and adverbs, with classes that keep sentences meaningful.

The classes of a noun (readable, openable, animal ...) determine which words it can be combined with: a verb names the
classes of its objects, an adjective the classes of the nouns it can describe. The tables are plain text, so that words
can be added without changing code. The order of their entries is part of the corpus: the random draws depend on it.
"""

from dataclasses import dataclass
from functools import cache, cached_property

from lingua_flax.data.corpora.phrasebook.morphology import (
    EnglishVerb,
    FrenchVerb,
    conjugate,
    english_plural,
    english_verb,
    french_feminine,
    french_plural,
)

NOT_OWNABLE = frozenset({"person", "outdoors", "way", "solid"})  # classes of nouns that take no possessive


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun in both languages. A `mass` noun has no plural and takes the partitive (bread, du pain)."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    classes: tuple[str, ...]
    mass: bool = False

    @property
    def kind(self) -> str:
        """The class within which nouns are compared with one another: furniture for a chair, animal for a cat."""
        return self.classes[1] if self.classes[0] == "thing" else self.classes[0]

    @property
    def ownable(self) -> bool:
        """Whether the noun takes a possessive: my teacher and my garden, but not my woman or my desert."""
        return "ownable" in self.classes or NOT_OWNABLE.isdisjoint(self.classes)

    @property
    def key(self) -> str:
        """The unique lemma key: bank/banque and bank/rive are two lemmas."""
        return f"{self.english}/{self.french}"


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective in both languages, with its four French forms.

    Attributes:
      before: whether the French adjective precedes the noun.
      prevocalic: the masculine singular before a vowel (bel), if it differs.
      idiom: whether French uses avoir and a bare noun (hungry: avoir faim); such an adjective cannot modify a noun.
    """

    english: str
    forms: tuple[str, str, str, str]  # masculine, feminine, masculine plural, feminine plural
    classes: tuple[str, ...]
    before: bool = False
    prevocalic: str = ""
    attributive: bool = True  # can modify a noun directly
    predicative: bool = True  # can follow to be
    gradable: bool = True  # can be used with very and too
    idiom: bool = False

    @property
    def key(self) -> str:
        """The unique lemma key: light/léger and light/clair are two lemmas."""
        return f"{self.english}/{self.forms[0]}"

    def agree(self, feminine: bool, plural: bool) -> str:
        """Returns the French form for a gender and number."""
        return self.forms[2 * plural + feminine]


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages.

    Attributes:
      objects: classes or English names of the nouns that can be its object.
      preposition: between the French verb and its object (jouer à, rendre visite à).
      suffix: a fixed word after the French verb (rendre visite).
    """

    english: EnglishVerb
    french: FrenchVerb
    objects: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    preposition: str = ""
    suffix: str = ""

    @property
    def key(self) -> str:
        """The unique lemma key: visit/visiter and visit/rendre visite are two lemmas."""
        return f"{self.english.infinitive}/{self.french.infinitive} {self.suffix}".strip()


# --- Nouns -------------------------------------------------------------------------------------------------------
# [classes shared by the nouns of the section]
# english[/plural] = french[/plural] gender [+further -removed classes]; ...

NOUN_TABLE = """
[animal]
cat = chat m +pet; dog = chien m +pet; cow = vache f; horse = cheval m; goat = chèvre f; pig = cochon m
rabbit = lapin m +pet; fox = renard m; wolf/wolves = loup m; bear = ours m; bird = oiseau m; hen = poule f
frog = grenouille f; turtle = tortue f; mouse/mice = souris f; squirrel = écureuil m; monkey = singe m
lion = lion m; elephant = éléphant m; donkey = âne m; owl = hibou m; duck = canard m; hedgehog = hérisson m
giraffe = girafe f; panther = panthère f; camel = chameau m; otter = loutre f; swan = cygne m
crocodile = crocodile m; hamster = hamster m +pet

[person]
man/men = homme m; woman/women = femme f +lady; boy = garçon m +young; girl = fille f +lady +young
child/children = enfant m +young; teacher = professeur m +ownable +job; doctor = médecin m +ownable +job
nurse = infirmière f +ownable +job; baker = boulanger m +ownable +job; farmer = fermier m +job
student = étudiant m +ownable +job; neighbor = voisin m +ownable; king = roi m +ownable
queen = reine f +lady +ownable; prince = prince m; princess = princesse f +lady; actor = acteur m +job
actress = actrice f +lady +job; waitress = serveuse f +job; waiter = serveur m +job; lady = dame f +lady
soldier = soldat m +job; lawyer = avocat m +ownable +job; sailor = marin m +job; cook = cuisinier m +ownable +job
painter = peintre m +job; tourist = touriste m; engineer = ingénieur m +job; hero/heroes = héros m
witch = sorcière f; pilot = pilote m +ownable +job; gardener = jardinier m +ownable +job
customer = client m +ownable; cashier = caissier m; banker = banquier m +ownable; manager = directeur m +ownable
fisherman/fishermen = pêcheur m; thief/thieves = voleur m; accountant = comptable m +ownable; mayor = maire m

[kin]
mother = mère f; father = père m; brother = frère m; sister = sœur f; aunt = tante f; uncle = oncle m
grandmother = grand-mère/grands-mères f; grandfather = grand-père/grands-pères m; cousin = cousin m; son = fils m
daughter = fille f; friend = ami m

[fruit countfood peelable]
apple = pomme f; pear = poire f; orange = orange f; banana = banane f; peach = pêche f; apricot = abricot m
melon = melon m -peelable; lemon = citron m

[vegetable countfood]
potato/potatoes = pomme de terre/pommes de terre f +peelable; tomato/tomatoes = tomate f
carrot = carotte f +peelable; onion = oignon m +peelable; bean = haricot m; cabbage = chou m

[countfood]
egg = œuf m; cake = gâteau m +baked; pie = tarte f +baked; sandwich = sandwich m; omelet = omelette f +baked
cookie = biscuit m +baked; lobster = homard m

[food mass]
bread = pain m +baked; soup = soupe f; fish = poisson m; meat = viande f; rice = riz m; cheese = fromage m
salad = salade f; butter = beurre m; honey = miel m; chocolate = chocolat m; ham = jambon m; chicken = poulet m

[drink mass]
water = eau f; milk = lait m; coffee = café m; tea = thé m; wine = vin m; juice = jus m; beer = bière f
lemonade = limonade f

[thing readable]
book = livre m; letter = lettre f; newspaper = journal m; poem = poème m -thing; story = histoire f -thing
contract = contrat m; diploma = diplôme m

[thing portable]
box = boîte f +container +liftable; bag = sac m +container +liftable; umbrella = parapluie m
knife/knives = couteau m; cup = tasse f; plate = assiette f; bottle = bouteille f +container; spoon = cuillère f
ball = ballon m; toy = jouet m; lamp = lampe f; map = carte f; pencil = crayon m; gift = cadeau m
flower = fleur f +pretty; mirror = miroir m; axe = hache f; jewel = bijou m +pretty; necklace = collier m +pretty
hammer = marteau m; basket = panier m +container +liftable; suitcase = valise f +container +liftable
backpack = sac à dos/sacs à dos m +container +liftable; photo/photos = photo f; painting = tableau m; rope = corde f
candle = bougie f; clock = horloge f; envelope = enveloppe f; ladder = échelle f +liftable; computer = ordinateur m
package = paquet m +container +liftable; coin = pièce f; doll = poupée f

[thing clothes]
hat = chapeau m; coat = manteau m; shirt = chemise f; dress = robe f; sweater = pull m; scarf/scarves = écharpe f
skirt = jupe f; shoe = chaussure f; jacket = veste f; glove = gant m; costume = costume m

[thing furniture surface]
chair = chaise f +soft; table = table f +flat; bed = lit m +soft; sofa = canapé m +soft; bench = banc m +flat
armchair = fauteuil m -surface; mattress = matelas m +soft +liftable

[surface]
carpet = tapis m +soft +thing +furniture; mat = tapis m +soft; cushion = coussin m +soft +thing +portable
blanket = couverture f +soft +thing +portable; grass = herbe f +soft +mass; rock = rocher m +flat +coast
sand = sable m +soft +mass; stone = pierre f +flat +thing +portable; straw = paille f +soft +mass
roof = toit m +flat; pillow = oreiller m +soft +thing +portable

[openable]
door = porte f; window = fenêtre f; drawer = tiroir m; cupboard = placard m; gate = portail m
safe = coffre-fort/coffres-forts m

[structure]
wall = mur m; fence = clôture f; ceiling = plafond m

[vehicle]
car = voiture f +driven; bicycle = vélo m; bus = bus m +driven; train = train m; boat = bateau m; plane = avion m
truck = camion m +driven; taxi = taxi m +driven; ambulance = ambulance f +driven; van = camionnette f +driven

[place room in]
kitchen = cuisine f; office = bureau m; bedroom = chambre f; hall = hall m
classroom = salle de classe/salles de classe f; attic = grenier m; garage = garage m; cellar = cave f

[place building]
house = maison f +built +in; school = école f +at; station = gare f +at; church = église f +in
hospital = hôpital m +at; hotel = hôtel m +built +at; museum = musée m +at; library = bibliothèque f +at
castle = château m +built +in; restaurant = restaurant m +at; theater = théâtre m +at; bakery = boulangerie f +at
farm = ferme f +at; tower = tour f +built +in; barn = grange f +in; stadium = stade m +at; airport = aéroport m +at
cathedral = cathédrale f +in; gymnasium = gymnase m +in

[place outdoors]
garden = jardin m +town +in +ownable; market = marché m +at; park = parc m +town +in; beach = plage f +coast +on
forest = forêt f +in; village = village m +in +ownable; city = ville f +in; island = île f +coast +on
port = port m +in; valley = vallée f +in; desert = désert m +in; cave = grotte f +in; hill = colline f +on
mountain = montagne f +on; meadow = prairie f +in; coast = côte f +coast +on

[way]
street = rue f +town +in; road = route f +town +on; avenue = avenue f +town; bridge = pont m +on
field = champ m +in; path = chemin m +on; lawn = pelouse f +town; river = rivière f +waterway
lake = lac m +waterway; stream = ruisseau m +waterway; canal = canal m +waterway; pond = étang m +waterway

[tree]
tree = arbre m; oak = chêne m; pine = pin m; birch = bouleau m; poplar = peuplier m; cherry tree = cerisier m

[text]
question = question f; answer = réponse f; lesson = leçon f; exercise = exercice m; exam = examen m; word = mot m
number = numéro m; address = adresse f; song = chanson f; film = film m; problem = problème m; game = jeu m

[solid]
wood = bois m +mass; ground = sol m +mass +surface +flat; ice = glace f +mass +coast +surface +flat

[body]
hand = main f; foot/feet = pied m; arm = bras m; eye = œil/yeux m; leg = jambe f; ear = oreille f
shoulder = épaule f; knee = genou m; cheek = joue f -body; chin = menton m -body; neck = cou m -body
forehead = front m -body; back = dos m -body

[device]
piano/pianos = piano m; accordion = accordéon m; calculator = calculatrice f
typewriter = machine à écrire/machines à écrire f
trap = piège m; machine = machine f
locker = casier m
"""

# --- Adjectives --------------------------------------------------------------------------------------------------
# [before|after|state|idiom]: French position before or after the noun, predicative only, or an idiom with avoir
# english = masculine[/feminine[/prevocalic]] : classes of nouns

ADJECTIVE_TABLE = """
[before]
big = grand : animal container clothes building outdoors vehicle furniture tree room cushion countfood body
small = petit : animal container clothes building outdoors vehicle furniture tree way portable body
beautiful = beau/belle/bel : lady clothes pretty building outdoors animal tree poem story song body
old = vieux/vieille/vieil : person animal building vehicle furniture clothes tree container
new = nouveau/nouvelle/nouvel : job clothes vehicle building furniture readable film song computer lamp
good = bon/bonne : job countfood food drink film song book story poem answer
bad = mauvais : soup coffee lesson restaurant hotel game painting cook waiter film song book story poem answer actor \
actress wine king
young = jeune : person animal tree
pretty = joli : clothes pretty fruit lamp cup bird village house song garden bedroom
long = long/longue : arm leg ear film lesson letter poem story book way beach lesson exam song rope

[after]
red = rouge : clothes vehicle flower fruit furniture container ball pencil carpet blanket cushion door roof
blue = bleu : clothes vehicle flower furniture container ball pencil carpet blanket cushion door bird cup plate
green = vert : clothes vehicle furniture container ball pencil carpet cushion door frog apple pear bean
white = blanc/blanche : structure clothes vehicle flower furniture blanket cushion door horse cat cow rabbit goat \
plate cup house
black = noir : clothes vehicle furniture container umbrella cat dog horse hen cow
yellow = jaune : clothes vehicle flower container pencil ball bird cup plate melon
gray = gris : clothes cat horse donkey mouse wolf rabbit blanket house roof stone
round = rond : table mirror box cake carpet stone cushion clock cheese plate hat
heavy = lourd : liftable furniture hammer ladder stone door axe machine computer mirror
empty = vide : container cup plate room building drawer cupboard bus train street beach
full = plein : container cup plate drawer cupboard bus train hotel restaurant stadium
dirty = sale : structure clothes cup plate spoon knife room window carpet dog pig vehicle hand foot
clean = propre : structure clothes cup plate spoon knife room window surface vehicle hand beach
dry = sec/sèche : surface clothes wood road path bread cake
wet = mouillé : clothes road umbrella ground roof bench path hand
warm = chaud : baked soup coffee tea milk clothes surface room
cold = froid : soup coffee tea milk drink meat room water
expensive = cher : clothes vehicle jewel necklace painting clock computer hotel restaurant furniture meat lobster \
wine
rusty = rouillé : bicycle car knife axe hammer gate
dusty = poussiéreux : furniture lamp room road book painting carpet
wooden = en bois/en bois : chair table box door spoon bench bridge ladder toy house boat doll
electric = électrique : lamp clock bicycle car bus typewriter
plastic = en plastique/en plastique : cup plate bottle toy spoon knife chair bag doll ball
broken = cassé : cup plate toy lamp clock chair table window mirror umbrella bicycle ladder doll computer machine
rich = riche : person
famous = célèbre : job prince princess queen painting book museum castle restaurant cathedral film song
intelligent = intelligent : person dog monkey horse pig fox
shy = timide : person squirrel mouse cat
polite = poli : person
brave = courageux : person lion dog
funny = drôle : person monkey film story book song
honest = honnête : person
lazy = paresseux : person cat donkey
curious = curieux : person cat monkey otter
strong = fort : soldier sailor man farmer horse lion bear elephant
dangerous = dangereux : lion panther crocodile wolf bear road street machine mountain game
interesting = intéressant : readable film text -number -address museum city
boring = ennuyeux : readable film text -number -address
easy = facile : text -address -number
important = important : text letter contract newspaper -song -game
useful = utile : hammer map knife basket ladder rope umbrella machine computer bicycle lesson book lamp word
sweet = sucré : fruit coffee tea cake pie cookie lemonade juice
salty = salé : soup fish ham cheese butter bean omelet
fresh = frais/fraîche : fruit vegetable egg fish milk juice salad bread
ripe = mûr : fruit tomato
delicious = délicieux : food countfood
comfortable = confortable : furniture -table vehicle hotel shoe house cushion carpet
modern = moderne : building -castle kitchen vehicle office furniture
quiet = tranquille : room building outdoors street
noisy = bruyant : street restaurant station machine vehicle child monkey classroom hotel
strange = étrange : person animal story film poem house

[state]
tired = fatigué : person animal
sick = malade : person animal
happy = heureux : person animal
sad = triste : person animal
angry = en colère/en colère : person animal
proud = fier : person
late = en retard/en retard : person train bus plane
ready = prêt : person baked soup meat
alone = seul : person animal
busy = occupé : person
closed = fermé : door window building market garden
high = haut : structure mountain tower hill cathedral bridge roof
soft = doux/douce : soft clothes
flat = plat : flat ground
thick = épais/épaisse : mattress carpet mat cushion blanket pillow grass straw coat sweater wall book rope
rotten = pourri : fruit vegetable egg
asleep = endormi : person animal

[idiom]
hungry = faim : person animal
thirsty = soif : person animal
afraid = peur : person animal
sleepy = sommeil : person animal
"""

# not used with very, too or as ... as
NOT_GRADABLE = frozenset((
    "red", "blue", "green", "white", "black", "yellow", "gray", "round", "wooden", "electric", "plastic", "broken",
    "delicious", "closed", "alone", "asleep", "empty", "late", "rotten", "ready",
))  # fmt: skip
ATTRIBUTIVE_ONLY = ("new", "bad", "good")  # the phrasebook does not use them after to be

# --- Verbs -------------------------------------------------------------------------------------------------------
# english[:past] = infinitive [je il nous ils participle] : classes of objects ; flags
# Flags:
#   etre       the passé composé takes être
#   reflexive  used with se
#   stative    no progressive
#   generic    objects without article are meant in general: likes fish, aime le poisson
#   present    present tense only
#   habit      the past is the imparfait
#   event      involuntary: not used with can, must or want to
#   animals    the subject can be an animal
#   person     the object can be a personal pronoun: me, him ...
#   plural     the object is plural
#   place      a place can follow
#   roam       the verb moves its subject: its places are those with in or on, not at

TRANSITIVE_TABLE = """
eat:ate = manger : food countfood ; animals
drink:drank = boire bois boit buvons boivent bu : drink ; animals
buy:bought = acheter : wood food countfood drink thing vehicle clothes
sell:sold = vendre vends vend vendons vendent vendu : food countfood thing vehicle house
cut:cut = couper : bread meat cheese ham cake pie melon rope vegetable apple pear wood grass
wash = laver : clothes cup plate spoon knife vehicle window fruit
read:read = lire lis lit lisons lisent lu : readable
write:wrote = écrire écris écrit écrivons écrivent écrit : letter poem story book song contract
open = ouvrir ouvre ouvre ouvrons ouvrent ouvert : openable container letter gift envelope umbrella
close = fermer : openable container umbrella restaurant bakery museum
break:broke = casser : cup plate lamp toy window mirror clock chair computer bottle egg doll
find:found = trouver : thing -furniture kin animal ; stative person
lose:lost = perdre perds perd perdons perdent perdu : portable clothes contract book letter ; stative event
hide:hid = cacher : portable gift coin chocolate honey cookie
look for:looked = chercher : thing -furniture animal kin job hotel restaurant station hospital museum ; person
choose:chose = choisir : thing film song food countfood hotel
clean = nettoyer : structure room furniture window shoe machine vehicle carpet drawer cupboard
carry = porter : wood liftable stone chair table young rope
wear:wore = porter : clothes
show:showed = montrer : thing -furniture animal room
sing:sang = chanter : song
hear:heard = entendre entends entend entendons entendent entendu : song animal person kin train bus ; stative \
person animals
listen to:listened = écouter : song story person kin ; person
see:saw = voir vois voit voyons voient vu : animal person kin building tree vehicle thing outdoors ; stative \
person animals
watch = regarder : film animal kin young train boat ; person animals
look at:looked = regarder : painting photo animal kin lady flower tree map clock house castle cathedral ; person \
animals
like = aimer : food countfood drink animal kin book film song poem museum garden ; generic stative present
love = adorer : food countfood drink animal kin flower story film ; generic stative present
hate = détester : food countfood drink lesson exam animal ; generic stative present
help = aider : person kin ; person
call = appeler : doctor kin job taxi ambulance ; person
thank = remercier : kin person ; person
invite = inviter : kin person ; person
wait for:waited = attendre attends attend attendons attendent attendu : bus train kin person taxi boat ; person
follow = suivre suis suit suivons suivent suivi : animal person kin vehicle ; person animals
meet:met = rencontrer : person kin ; person
forget:forgot = oublier : portable clothes answer word number address lesson ; stative event
take:took = prendre prends prend prenons prennent pris : bus train taxi plane portable clothes
drive:drove = conduire conduis conduit conduisons conduisent conduit : driven
repair = réparer : structure vehicle clock lamp computer chair roof door toy machine table shoe
draw:drew = dessiner : animal tree house castle boat flower map body wall
paint = peindre peins peint peignons peignent peint : door structure house chair boat bedroom window gate
build:built = construire construis construit construisons construisent construit : built bridge boat
cross = traverser : street road avenue bridge field forest river desert city village park ; animals
borrow = emprunter : portable vehicle coat umbrella ladder
throw:threw = jeter : ball stone package toy hat newspaper
count = compter : coin egg animal chair cup word tree ; plural
feed:fed = nourrir : animal
catch:caught = attraper : animal ball thief ; animals
understand:understood = comprendre comprends comprend comprenons comprennent compris : text -number -address story \
poem book ; stative
study = étudier : lesson poem map contract word song
describe = décrire décris décrit décrivons décrivent décrit : house painting film animal thief city kin
taste = goûter : food countfood drink
peel = éplucher : peelable
prepare = préparer : food countfood coffee tea lesson exam room
fold = plier : clothes -shoe -hat -glove map blanket letter
have:had = avoir ai a avons ont eu : thing pet vehicle house garden ; stative habit
photograph = photographier : animal building tree kin outdoors flower hand eye ear
ask:asked = poser : question
solve = résoudre résous résout résolvons résolvent résolu : problem exercise
protect = protéger : animal young house garden village ; animals
admire = admirer : painting queen king hero building outdoors tree jewel
bake = cuire cuis cuit cuisons cuisent cuit : baked -omelet -sandwich
pick = cueillir cueille cueille cueillons cueillent cueilli : fruit flower tomato bean
push = pousser : door car bicycle boat furniture gate
"""

INTRANSITIVE_TABLE = """
sleep:slept = dormir dors dort dormons dorment dormi ; animals place
run:ran = courir cours court courons courent couru ; animals place roam
swim:swam = nager ; animals
work = travailler ; place
cry = pleurer ; place event
laugh = rire ris rit rions rient ri
smile = sourire souris sourit sourions sourient souri
dance = danser ; place
speak:spoke = parler
walk = marcher ; animals place roam
wait = attendre attends attend attendons attendent attendu ; animals place
sing:sang = chanter ; place
cook = cuisiner
eat:ate = manger ; animals place
travel = voyager
study = étudier ; place
think:thought = réfléchir
cough = tousser ; event
fall:fell = tomber ; animals etre event
arrive = arriver ; animals etre
leave:left = partir pars part partons partent parti ; animals etre
go out:went = sortir sors sort sortons sortent sorti ; animals etre
come back:came = revenir reviens revient revenons reviennent revenu ; animals etre
stay = rester ; animals etre place
get up:got = lever ; animals etre reflexive
wake up:woke = réveiller ; animals etre reflexive
hurry = dépêcher ; animals etre reflexive
rest = reposer ; animals etre reflexive place
get dressed:got = habiller ; etre reflexive
have fun:had = amuser ; etre reflexive place
fall asleep:fell = endormir endors endort endormons endorment endormi ; animals etre reflexive place event
get lost:got = perdre perds perd perdons perdent perdu ; animals etre reflexive event
get bored:got = ennuyer ; etre reflexive place event
stop = arrêter ; animals etre reflexive
"""

# --- Names and adverbs -------------------------------------------------------------------------------------------

FEMALE_NAMES = ("Marie", "Sophie", "Claire", "Julie", "Emma", "Alice")
MALE_NAMES = ("Paul", "Thomas", "Lucas", "Antoine", "Pierre", "Olivier")

# group of tenses -> (English, French), at the end of the sentence
TIME_ADVERBS = {
    "past": (
        ("yesterday", "hier"), ("last night", "hier soir"), ("this morning", "ce matin"),
        ("last week", "la semaine dernière"), ("on Monday", "lundi"), ("last year", "l'année dernière"),
    ),
    "present": (
        ("every day", "tous les jours"), ("on Sundays", "le dimanche"), ("in the morning", "le matin"),
        ("in the evening", "le soir"),
    ),
    "season": (
        ("in spring", "au printemps"), ("in summer", "en été"), ("in winter", "en hiver"),
        ("every day", "tous les jours"),
    ),
    "now": (("now", "maintenant"), ("this evening", "ce soir"), ("today", "aujourd'hui")),
    "future": (("tomorrow", "demain"), ("tonight", "ce soir"), ("next week", "la semaine prochaine")),
}  # fmt: skip
FREQUENCY_ADVERBS = (("often", "souvent"), ("always", "toujours"), ("sometimes", "parfois"))


# --- Parsing the tables ------------------------------------------------------------------------------------------


def parse_noun(entry: str, shared: tuple[str, ...] = ()) -> Noun:
    """Parses an entry such as "wolf/wolves = loup m +wild -farm"; `shared` are the classes of its section."""
    english, _, right = entry.partition(" = ")
    words = right.split()
    marks = [word for word in words if word[0] in "+-"]
    *french_words, gender = [word for word in words if word not in marks]
    singular, _, plural = english.strip().partition("/")
    french_singular, _, irregular_plural = " ".join(french_words).partition("/")
    removed = {mark[1:] for mark in marks if mark[0] == "-"}
    classes = tuple(c for c in (*shared, *(mark[1:] for mark in marks if mark[0] == "+")) if c not in removed)
    return Noun(
        english=singular,
        english_plural=plural or english_plural(singular),
        french=french_singular,
        french_plural=irregular_plural or french_plural(french_singular),
        feminine=gender == "f",
        classes=classes,
        mass="mass" in classes,
    )


def parse_adjective(entry: str, position: str = "after") -> Adjective:
    """Parses an entry such as "old = vieux/vieille/vieil : person animal"; `position` is the header of its section."""
    english, _, right = entry.partition(" = ")
    french, _, classes = right.partition(" : ")
    masculine, feminine, prevocalic = (*french.strip().split("/"), "", "")[:3]
    feminine = feminine or french_feminine(masculine)
    invariable = position == "idiom" or (masculine == feminine and " " in masculine)
    forms = (masculine,) * 4 if invariable else (masculine, feminine, french_plural(masculine), french_plural(feminine))
    return Adjective(
        english=english.strip(),
        forms=forms,
        classes=tuple(classes.split()),
        before=position == "before",
        prevocalic=prevocalic,
        attributive=position in ("before", "after"),
        predicative=position != "before" or english.strip() not in ATTRIBUTIVE_ONLY,
        gradable=english.strip() not in NOT_GRADABLE,
        idiom=position == "idiom",
    )


def parse_verb(entry: str) -> Verb:
    """Parses an entry such as "wait for:waited = attendre attends attend ... attendu : bus train ; person"."""
    english, _, right = entry.partition(" = ")
    french, _, flag_words = right.partition(";")
    forms, _, objects = french.partition(" : ")
    words, _, past = english.strip().partition(":")
    infinitive, _, key_forms = forms.strip().partition(" ")
    flags = tuple(flag_words.split())
    return Verb(
        english_verb(words, past),
        conjugate(infinitive, key_forms, "etre" in flags, "reflexive" in flags),
        tuple(objects.split()),
        flags,
    )


def _sections(table: str) -> list[tuple[tuple[str, ...], str]]:
    """Returns (words of the section header, line) for every line of a table with [header] lines."""
    header: tuple[str, ...] = ()
    entries: list[tuple[tuple[str, ...], str]] = []
    for line in table.strip().splitlines():
        if line.startswith("["):
            header = tuple(line.strip("[]").split())
        elif line.strip():
            entries.append((header, line))
    return entries


@dataclass(frozen=True, eq=False)
class Lexicon:
    """All words of the tables, in table order."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[Adjective, ...]
    transitives: tuple[Verb, ...]
    intransitives: tuple[Verb, ...]

    @cached_property
    def _nouns_by_english(self) -> dict[str, Noun]:
        return {noun.english: noun for noun in self.nouns}

    @cached_property
    def _adjectives_by_english(self) -> dict[str, Adjective]:
        return {adjective.english: adjective for adjective in self.adjectives}

    @cached_property
    def _intransitives_by_english(self) -> dict[str, Verb]:
        return {verb.english.infinitive: verb for verb in self.intransitives}

    @cached_property
    def _verbs_by_english(self) -> dict[str, Verb]:
        return self._intransitives_by_english | {verb.english.infinitive: verb for verb in self.transitives}

    def noun(self, english: str) -> Noun:
        """Returns the noun with this English form."""
        return self._nouns_by_english[english]

    def adjective(self, english: str) -> Adjective:
        """Returns the adjective with this English form."""
        return self._adjectives_by_english[english]

    def verb(self, english: str) -> Verb:
        """Returns the verb with this English infinitive; a transitive verb takes precedence."""
        return self._verbs_by_english[english]

    def intransitive(self, english: str) -> Verb:
        """Returns the intransitive verb with this English infinitive."""
        return self._intransitives_by_english[english]

    def select(self, wanted: tuple[str, ...]) -> tuple[Noun, ...]:
        """Returns the nouns selected by classes or English names, in table order.

        Terms such as "pet" or "lemon" include nouns; those with a leading "-" exclude them ("-pet", "-lemon"). Raises
        ValueError if a term is neither a noun nor a class.
        """
        known = {term for noun in self.nouns for term in (*noun.classes, noun.english)}
        for term in wanted:
            if term.lstrip("-").replace("_", " ") not in known:
                raise ValueError(f"the lexicon has no noun and no class of nouns called {term!r}")
        included = {term.replace("_", " ") for term in wanted if term[0] != "-"}
        excluded = {term[1:] for term in wanted if term[0] == "-"}

        def matches(noun: Noun, terms: set[str]) -> bool:
            return noun.english in terms or not terms.isdisjoint(noun.classes)

        return tuple(noun for noun in self.nouns if matches(noun, included) and not matches(noun, excluded))


@cache
def load_lexicon() -> Lexicon:
    """Returns the lexicon, parsed once.

    Raises ValueError if an English noun is listed twice, which would make its translation ambiguous.
    """
    nouns = tuple(
        parse_noun(item, header) for header, line in _sections(NOUN_TABLE) for item in line.split(";") if item.strip()
    )
    names = [noun.english for noun in nouns]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"nouns listed twice: {duplicates}")
    return Lexicon(
        nouns=nouns,
        adjectives=tuple(parse_adjective(line, header[0]) for header, line in _sections(ADJECTIVE_TABLE)),
        transitives=tuple(parse_verb(line) for _, line in _sections(TRANSITIVE_TABLE)),
        intransitives=tuple(parse_verb(line) for _, line in _sections(INTRANSITIVE_TABLE)),
    )
