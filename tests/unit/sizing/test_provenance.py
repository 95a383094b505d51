"""What an answer stands on: inputs are told apart by what they are about, not by how they read."""

from tonnage.sizing.provenance import Figure, Input, Origin, replaced, without


def an_input(figure, value="1", which=""):
    return Input(figure=figure, value=value, origin=Origin.LOOKED_UP, which=which)


GPU = an_input(Figure.GPU, which="H100")
MEMORY = an_input(Figure.MEMORY)
NOTES = (an_input(Figure.MODEL, "a"), an_input(Figure.MODEL, "b"))


def test_a_name_says_which_where_there_are_several():
    assert GPU.name == "GPU H100"
    assert MEMORY.name == "memory"


def test_an_input_is_replaced_in_its_place_whatever_it_is_called():
    other = an_input(Figure.GPU, which="L4")

    assert replaced((MEMORY, GPU, *NOTES), other) == (MEMORY, other, *NOTES)


def test_what_was_not_there_replaces_nothing():
    assert replaced((GPU, *NOTES), MEMORY) == (GPU, *NOTES)


def test_all_that_is_about_a_figure_is_left_out():
    assert without((GPU, *NOTES, MEMORY), Figure.MODEL, Figure.MEMORY) == (GPU,)
