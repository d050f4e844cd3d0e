"""What the config of a run takes from that of another run, whose parameters it begins with."""

from collections.abc import Container

from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import Config, DataConfig, Section, SectionType, TokenizerConfig

# Of [model], what a run may choose for itself: it changes neither parameters nor what they compute.
FREE = ("dropout_rate", "attention", "max_length")
OF_THIS_RUN = ("model_file", "sampling_alpha")  # of [tokenizer]
# Of [data]: text files do not say what they are, and a row is no longer than the network's max_length.
OF_FILES = ("source_language", "target_language", "tag_target", "row_length")


def inheriting(config: Config, origin: Config, given: Container[str]) -> Config:
    """Returns a config that has [model], [tokenizer] and [decoding] of another run wherever it says nothing itself.

    The names in `given` are options of the command line, which come later. With text files of one's own, the languages
    and the length of rows are inherited, too.
    """
    own, other = config.tokenizer, origin.tokenizer
    if own.model_file is None and "tokenizer.model_file" not in given:
        own = _filled(own, other, [name for name in TokenizerConfig.model_fields if name not in OF_THIS_RUN])
    data: DataConfig = config.data
    if data.name == "text":
        data = _filled(data, origin.data, OF_FILES)
    sections = {"data": data, "tokenizer": own}
    sections |= {name: _filled(getattr(config, name), getattr(origin, name)) for name in ("model", "decoding")}
    return config.model_copy(update=sections)


def check_same_network(config: Config, origin: Config, given: Container[str], where: str) -> None:
    """Raises UserError if a config says something else of [model] than that of a run in a place such as "in W".

    Only the command line may, whose options are `given`.
    """
    for name in sorted(config.model.model_fields_set):
        wanted, found = getattr(config.model, name), getattr(origin.model, name)
        is_free = name in FREE and not (name == "max_length" and origin.model.positions == "learned")
        if wanted != found and not is_free and f"model.{name}" not in given:
            option = f"--model.{name.replace('_', '-')} {wanted}"
            difference = f"model.{name} is {wanted} in the config, but {found} {where}"
            remedy = f"leave it out of the config, or give {option} on the command line"
            raise UserError(f"{difference}, whose parameters would compute something else: {remedy}")


def _filled(section: SectionType, other: Section, names: Container[str] | None = None) -> SectionType:
    """Returns a section with what it does not say itself of the fields with these names, by default of all."""
    said = section.model_fields_set
    values = {name: value for name, value in other if name not in said and (names is None or name in names)}
    return section.model_copy(update=values)
