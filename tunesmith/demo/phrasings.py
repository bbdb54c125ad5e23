"""How each kind of question is said: in training, and otherwise in the held-out part.

Slots of a template, each also in the plural (`{ts}`, `{labels}`, `{cols}`, ...):

- `{t}` the table's noun, `{label}` the column that names its rows, `{col}` another column;
- `{p}` the parent table of `{t}`, with its `{plabel}` and `{pcol}`;
- `{x}` a value ("France") or a comparison ("above 30"); `{cat}` a text column and, beside an `{x}`,
  its value `{v}`; `{low}` and `{high}` two ends; `{n}` a number of rows;
- `{agg}` "average", `{most}` "highest", `{order}` "from lowest to highest", `{what}` "number of
  songs".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phrasings:
    """The templates of one kind; a held-out template never occurs in training."""

    training: tuple[str, ...]
    heldout: tuple[str, ...]


PHRASINGS: dict[str, Phrasings] = {
    "lookup": Phrasings(
        training=(
            "What is the {col} of the {t} {x}?",
            "What {col} does the {t} {x} have?",
            "Give the {col} of the {t} {x}.",
            "Tell me the {col} of {t} {x}.",
            "Find the {col} of the {t} called {x}.",
            "Show the {col} for the {t} with {label} {x}.",
            "For the {t} {x}, what is the {col}?",
            "Return the {col} of the {t} whose {label} is {x}.",
            "What is the {col} of {t} {x}?",
            "Look up the {col} of the {t} {x}.",
        ),
        heldout=(
            "Which {col} does the {t} named {x} have?",
            "Can you tell me the {col} of the {t} {x}?",
            "I need the {col} of the {t} whose {label} is {x}.",
            "Please show the {col} of {t} {x}.",
        ),
    ),
    "text_filter": Phrasings(
        training=(
            "What are the {cols} of the {ts} whose {cat} is {x}?",
            "List the {cols} of all {ts} with {cat} {x}.",
            "Show the {cols} of {ts} where the {cat} is {x}.",
            "Find the {cols} of the {ts} that have {x} as their {cat}.",
            "Give me the {cols} of every {t} with {cat} {x}.",
            "For the {ts} with {cat} {x}, list the {cols}.",
            "Return the {col} of each {t} whose {cat} is {x}.",
            "Which {cols} belong to {ts} with the {cat} {x}?",
            "Get the {cols} for {ts} whose {cat} equals {x}.",
            "Tell me the {col} of every {t} that has the {cat} {x}.",
        ),
        heldout=(
            "Please list the {cols} of the {ts} having {cat} {x}.",
            "I want to see the {cols} of all {ts} whose {cat} is {x}.",
            "Among the {ts} with {cat} {x}, what are the {cols}?",
            "What {cols} do the {ts} with {x} as {cat} have?",
        ),
    ),
    "number_filter": Phrasings(
        training=(
            "What are the {labels} of the {ts} whose {col} is {x}?",
            "List the {labels} of all {ts} with {col} {x}.",
            "Show the {label} of every {t} with a {col} {x}.",
            "Which {ts} have a {col} {x}? Give their {labels}.",
            "Find the {labels} of {ts} where the {col} is {x}.",
            "Return the {labels} of {ts} that have a {col} {x}.",
            "Give me the {labels} of the {ts} with a {col} that is {x}.",
            "Get the {label} of each {t} whose {col} is {x}.",
            "For the {ts} with {col} {x}, show the {labels}.",
            "Tell me the {labels} of {ts} whose {col} is {x}.",
        ),
        heldout=(
            "Please give the {labels} of all {ts} with a {col} {x}.",
            "I am looking for the {labels} of {ts} whose {col} is {x}.",
            "Name every {t} with a {col} {x} by its {label}.",
            "What {labels} do the {ts} with {col} {x} have?",
        ),
    ),
    "two_conditions": Phrasings(
        training=(
            "What are the {labels} of the {ts} whose {cat} is {v} and whose {col} is {x}?",
            "List the {labels} of {ts} with {cat} {v} and {col} {x}.",
            "Show the {labels} of all {ts} where the {cat} is {v} and the {col} is {x}.",
            "Which {ts} have the {cat} {v} and a {col} {x}? Give their {labels}.",
            "Find the {labels} of {ts} that have {cat} {v} and a {col} {x}.",
            "Give me the {label} of every {t} with {cat} {v} and a {col} {x}.",
            "Return the {labels} of {ts} whose {cat} equals {v} and whose {col} is {x}.",
            "Get the {labels} of the {ts} having both the {cat} {v} and a {col} {x}.",
            "Among the {ts} with {cat} {v}, show the {labels} of those with {col} {x}.",
        ),
        heldout=(
            "Please list the {labels} of all {ts} whose {cat} is {v} and whose {col} is {x}.",
            "I want the {labels} of the {ts} with {cat} {v} that also have a {col} {x}.",
            "Tell me the {label} of each {t} where the {cat} is {v} and the {col} is {x}.",
            "What {labels} belong to {ts} with the {cat} {v} and a {col} {x}?",
        ),
    ),
    "between": Phrasings(
        training=(
            "What are the {labels} of the {ts} whose {col} is between {low} and {high}?",
            "List the {labels} of {ts} with a {col} between {low} and {high}.",
            "Show the {label} of every {t} with {col} from {low} to {high}.",
            "Which {ts} have a {col} between {low} and {high}? Give their {labels}.",
            "Find the {labels} of {ts} where the {col} lies between {low} and {high}.",
            "Return the {labels} of all {ts} whose {col} is in the range {low} to {high}.",
            "Give me the {labels} of {ts} with {col} between {low} and {high}.",
            "Get the {label} of each {t} whose {col} is from {low} to {high}.",
            "For which {ts} is the {col} between {low} and {high}? Show the {labels}.",
        ),
        heldout=(
            "Please list the {labels} of the {ts} whose {col} lies between {low} and {high}.",
            "I need the {label} of every {t} that has a {col} between {low} and {high}.",
            "What {labels} do {ts} with a {col} from {low} to {high} have?",
            "Tell me the {labels} of all {ts} with a {col} in the range from {low} to {high}.",
        ),
    ),
    "count": Phrasings(
        training=(
            "How many {ts} are there?",
            "Count the {ts}.",
            "What is the number of {ts}?",
            "How many {ts} are in the database?",
            "Give the total number of {ts}.",
            "Find out how many {ts} exist.",
            "Show the number of all {ts}.",
            "Tell me how many {ts} we have.",
            "What is the total count of {ts}?",
            "Return the number of {ts}.",
        ),
        heldout=(
            "How many {ts} does the database contain?",
            "I want to know how many {ts} there are in total.",
            "Please count all the {ts}.",
            "What is the overall number of {ts}?",
        ),
    ),
    "count_filter": Phrasings(
        training=(
            "How many {ts} have {col} {x}?",
            "Count the {ts} whose {col} is {x}.",
            "What is the number of {ts} with {col} {x}?",
            "How many {ts} are there whose {col} is {x}?",
            "Find the number of {ts} where the {col} is {x}.",
            "Show how many {ts} have the {col} {x}.",
            "Give the number of {ts} that have {col} {x}.",
            "Tell me how many {ts} there are with {col} {x}.",
            "Return the count of {ts} whose {col} is {x}.",
        ),
        heldout=(
            "For how many {ts} is the {col} {x}?",
            "Please count the {ts} with {col} {x}.",
            "I want to know how many {ts} have {col} {x}.",
            "How many of the {ts} have a {col} that is {x}?",
        ),
    ),
    "aggregate": Phrasings(
        training=(
            "What is the {agg} {col} of all {ts}?",
            "Find the {agg} {col} of the {ts}.",
            "Show the {agg} {col} over all {ts}.",
            "Give me the {agg} {col} of the {ts}.",
            "What {agg} {col} do the {ts} have?",
            "Calculate the {agg} {col} of all {ts}.",
            "Return the {agg} {col} for all {ts}.",
            "Tell me the {agg} {col} among the {ts}.",
            "For all {ts}, what is the {agg} {col}?",
        ),
        heldout=(
            "Compute the {agg} {col} of the {ts}.",
            "I would like to know the {agg} {col} of all {ts}.",
            "Across all {ts}, what is the {agg} {col}?",
            "Please give the {agg} {col} for the {ts}.",
        ),
    ),
    "aggregate_filter": Phrasings(
        training=(
            "What is the {agg} {col} of {ts} whose {cat} is {x}?",
            "Find the {agg} {col} of the {ts} with {cat} {x}.",
            "Show the {agg} {col} of all {ts} where the {cat} is {x}.",
            "Give me the {agg} {col} of {ts} with the {cat} {x}.",
            "For {ts} with {cat} {x}, what is the {agg} {col}?",
            "Calculate the {agg} {col} of {ts} that have {x} as their {cat}.",
            "Return the {agg} {col} for {ts} whose {cat} is {x}.",
            "What {agg} {col} do {ts} with {cat} {x} have?",
            "Among the {ts} whose {cat} is {x}, find the {agg} {col}.",
        ),
        heldout=(
            "Compute the {agg} {col} of all {ts} with {cat} {x}.",
            "I want the {agg} {col} for the {ts} whose {cat} is {x}.",
            "Across the {ts} having {cat} {x}, what is the {agg} {col}?",
            "Please tell me the {agg} {col} of {ts} where the {cat} is {x}.",
        ),
    ),
    "distinct": Phrasings(
        training=(
            "List the different {cols} of the {ts}.",
            "What are the distinct {cols} of all {ts}?",
            "Show all the different {cols} that {ts} have.",
            "Which different {cols} occur among the {ts}?",
            "Find the unique {cols} of {ts}.",
            "Give me each different {col} of the {ts}.",
            "Return the distinct {cols} found among {ts}.",
            "What different {cols} do the {ts} have?",
            "Show every {col} of the {ts} without repeats.",
            "List the {cols} of the {ts}, each only once.",
        ),
        heldout=(
            "Please list all distinct {cols} of the {ts}.",
            "What unique {cols} are there among the {ts}?",
            "I want to see the different {cols} of all {ts}.",
            "Tell me the {cols} of the {ts} without duplicates.",
        ),
    ),
    "group_count": Phrasings(
        training=(
            "How many {ts} are there for each {col}?",
            "Show each {col} with its number of {ts}.",
            "Count the {ts} for each {col}.",
            "For each {col}, show the {col} and the number of {ts}.",
            "List every {col} together with the number of {ts}.",
            "What is the number of {ts} per {col}?",
            "Give the number of {ts} for every {col}.",
            "Find each {col} and how many {ts} it has.",
            "Return the {cols} and the count of {ts} for each.",
        ),
        heldout=(
            "For every {col}, how many {ts} are there?",
            "Please count the {ts} by {col}.",
            "Tell me how many {ts} there are per {col}.",
            "What are the {cols}, and how many {ts} does each one have?",
        ),
    ),
    "group_having": Phrasings(
        training=(
            "Which {cols} have {x} {ts}?",
            "List the {cols} with {x} {ts}.",
            "Show the {cols} that have {x} {ts}.",
            "Find each {col} with {x} {ts}.",
            "What are the {cols} that occur in {x} {ts}?",
            "Give me every {col} that has {x} {ts}.",
            "Return the {cols} shared by {x} {ts}.",
            "Which {cols} belong to {x} {ts}?",
            "For which {cols} are there {x} {ts}?",
        ),
        heldout=(
            "Please list every {col} that has {x} {ts}.",
            "What {cols} are shared by {x} {ts}?",
            "I want to see the {cols} having {x} {ts}.",
            "Tell me which {cols} have {x} {ts}.",
        ),
    ),
    "superlative": Phrasings(
        training=(
            "What is the {label} of the {t} with the {most} {col}?",
            "Which {t} has the {most} {col}? Give the {label}.",
            "Show the {label} of the {t} that has the {most} {col}.",
            "Find the {label} of the {t} with the {most} {col}.",
            "Give me the {label} of the {t} whose {col} is the {most}.",
            "Return the {label} of the {t} with the {most} {col} of all.",
            "Of all {ts}, which {label} has the {most} {col}?",
            "Tell me the {label} of the {t} with the {most} {col}.",
            "The {t} with the {most} {col}: what is its {label}?",
        ),
        heldout=(
            "Among all {ts}, which {t} has the {most} {col}? Show its {label}.",
            "Please give the {label} of the {t} that has the {most} {col}.",
            "I want to know the {label} of the {t} with the {most} {col}.",
            "What {label} does the {t} with the {most} {col} have?",
        ),
    ),
    "top_n": Phrasings(
        training=(
            "What are the {labels} of the {n} {ts} with the {most} {col}?",
            "List the {labels} of the {n} {ts} with the {most} {cols}.",
            "The {n} {ts} with the {most} {col}: what are their {labels}?",
            "Which {n} {ts} have the {most} {col}? Give their {labels}.",
            "Find the {labels} of the {n} {ts} that have the {most} {col}.",
            "Give me the {labels} of the {n} {ts} whose {col} is the {most}.",
            "Return the {n} {labels} of the {ts} with the {most} {cols}.",
            "Tell me the {labels} of the {n} {ts} having the {most} {col}.",
        ),
        heldout=(
            "Please show the {labels} for the {n} {ts} with the {most} {col}.",
            "I want the {labels} of the {n} {ts} with the {most} {col}.",
            "Among all {ts}, what are the {labels} of the {n} with the {most} {col}?",
            "What {labels} do the {n} {ts} with the {most} {cols} have?",
        ),
    ),
    "sorted_list": Phrasings(
        training=(
            "List the {labels} of all {ts} sorted by {col} {order}.",
            "Show the {labels} of the {ts} ordered by {col} {order}.",
            "What are the {labels} of the {ts}, sorted by {col} {order}?",
            "Give me all {t} {labels} in order of {col} {order}.",
            "Order the {ts} by {col} {order} and show their {labels}.",
            "Return the {label} of each {t} sorted by {col} {order}.",
            "Sort the {ts} by {col} {order} and list the {labels}.",
            "Find the {labels} of all {ts}, ordered by {col} {order}.",
            "Display every {t}'s {label} by {col} {order}.",
        ),
        heldout=(
            "Please list all {t} {labels} ordered by {col} {order}.",
            "I want to see the {labels} of the {ts} arranged by {col} {order}.",
            "Put all {ts} in order by {col} {order} and give their {labels}.",
            "What are all the {t} {labels} when sorted by {col} {order}?",
        ),
    ),
    "join_filter": Phrasings(
        training=(
            "What are the {labels} of the {ts} whose {p} has the {pcol} {x}?",
            "List the {labels} of {ts} whose {p}'s {pcol} is {x}.",
            "Show the {labels} of all {ts} with a {p} whose {pcol} is {x}.",
            "Find the {labels} of {ts} that belong to a {p} with {pcol} {x}.",
            "Give me the {label} of every {t} whose {p} has {pcol} {x}.",
            "Which {ts} have a {p} with {pcol} {x}? Give their {labels}.",
            "Return the {labels} of the {ts} where the {p}'s {pcol} is {x}.",
            "For {ps} with {pcol} {x}, list the {labels} of their {ts}.",
            "Get the {labels} of the {ts} linked to a {p} whose {pcol} is {x}.",
            "Tell me the {t} {labels} for {ps} whose {pcol} is {x}.",
        ),
        heldout=(
            "Please list the {labels} of all {ts} whose {p} has a {pcol} that is {x}.",
            "I want the {labels} of the {ts} belonging to a {p} whose {pcol} is {x}.",
            "What {labels} do the {ts} have whose {p}'s {pcol} is {x}?",
            "Name each {t} that has a {p} with {pcol} {x} by its {label}.",
        ),
    ),
    "join_aggregate": Phrasings(
        training=(
            "What is the {what} whose {p} has the {pcol} {x}?",
            "Find the {what} whose {p}'s {pcol} is {x}.",
            "Show the {what} with a {p} whose {pcol} is {x}.",
            "Give the {what} that belong to a {p} with {pcol} {x}.",
            "For {ps} with {pcol} {x}, what is the {what}?",
            "Calculate the {what} where the {p}'s {pcol} is {x}.",
            "Return the {what} linked to a {p} whose {pcol} is {x}.",
            "Tell me the {what} whose {p} has {pcol} {x}.",
            "What is the {what} that have a {p} with {pcol} {x}?",
        ),
        heldout=(
            "Compute the {what} whose {p}'s {pcol} is {x}.",
            "I want to know the {what} belonging to a {p} whose {pcol} is {x}.",
            "Please give the {what} whose {p} has the {pcol} {x}.",
            "For the {ps} whose {pcol} is {x}, what is the {what}?",
        ),
    ),
    "join_pairs": Phrasings(
        training=(
            "List the {label} of each {t} and the {plabel} of its {p}.",
            "Show every {t}'s {label} together with the {plabel} of its {p}.",
            "For each {t}, give its {label} and its {p}'s {plabel}.",
            "What are the {labels} of the {ts} and the {plabels} of their {ps}?",
            "Find the {label} of every {t} and the {plabel} of the {p} it belongs to.",
            "Give me all {t} {labels} with the {plabels} of their {ps}.",
            "Return each {t}'s {label} and the {plabel} of its {p}.",
            "Show the {labels} of all {ts} along with their {p}'s {plabel}.",
        ),
        heldout=(
            "Please list every {t}'s {label} with its {p}'s {plabel}.",
            "For all {ts}, show the {label} and the {plabel} of the {p}.",
            "I want to see each {t}'s {label} next to the {plabel} of its {p}.",
            "Tell me the {label} of every {t} along with the {plabel} of its {p}.",
        ),
    ),
    "join_superlative": Phrasings(
        training=(
            "What is the {plabel} of the {p} with the most {ts}?",
            "Which {p} has the most {ts}? Give the {plabel}.",
            "Show the {plabel} of the {p} that has the most {ts}.",
            "Find the {plabel} of the {p} with the largest number of {ts}.",
            "Give me the {plabel} of the {p} with the highest number of {ts}.",
            "Return the {plabel} of the {p} that the most {ts} belong to.",
            "Of all {ps}, which {plabel} has the most {ts}?",
            "Tell me the {plabel} of the {p} having the most {ts}.",
        ),
        heldout=(
            "Among all {ps}, which {p} has the most {ts}? Show its {plabel}.",
            "Please give the {plabel} of the {p} that has the largest number of {ts}.",
            "I want to know the {plabel} of the {p} with the most {ts}.",
            "What {plabel} does the {p} with the highest number of {ts} have?",
        ),
    ),
    "not_in": Phrasings(
        training=(
            "Which {ps} have no {ts}? Give their {plabels}.",
            "What are the {plabels} of the {ps} without any {ts}?",
            "List the {plabels} of {ps} that have no {ts}.",
            "Show the {plabel} of every {p} without {ts}.",
            "Find the {plabels} of all {ps} that do not have any {ts}.",
            "Give me the {plabels} of {ps} with no {ts}.",
            "Return the {plabel} of each {p} that has no {t}.",
            "For which {ps} are there no {ts}? Show the {plabels}.",
        ),
        heldout=(
            "Please list the {plabels} of the {ps} that do not have {ts}.",
            "I want the {plabel} of every {p} that has no {ts}.",
            "Tell me the {plabels} of all {ps} without a single {t}.",
            "What {plabels} do the {ps} with no {ts} have?",
        ),
    ),
}
