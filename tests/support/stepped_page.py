"""One engine, stepped one step at a time: what vLLM's metrics say at any moment, by the book.

Each step's tokens, gaps and gauges are noted when it ends, as the emulator notes them; nothing is
taken many steps at once.
"""

from dataclasses import dataclass, field

from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable


@dataclass
class Noted:
    """What the metrics say after a step."""

    at_s: float = 0.0
    tokens: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    finished_output: int = 0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    kv_usage: float = 0.0
    ttfts_s: list = field(default_factory=list)
    tpots_s: list = field(default_factory=list)


class Stepped:
    """Serves a table of requests, and knows what the metrics said when."""

    def __init__(self, limits, costs, table: RequestTable):
        self.engine = Engine(limits, costs, table, 0, is_logged=True)
        self.table = table
        self.last_token_s, self.tokens = {}, {}
        self.notes = [Noted()]

    def serve(self):
        table, engine, number = self.table, self.engine, 0
        while number < table.size or engine.num_outstanding:
            if not engine.num_outstanding:
                engine.submit(number)
                number += 1
            while number < table.size and table.arrival_s[number] <= engine.now_s:
                engine.submit(number)
                number += 1
            engine.step()
            self._note()
        return self

    def _note(self):
        (rank,) = self.engine.ranks
        table, now_s, last = self.table, self.engine.now_s, self.notes[-1]
        new = Noted(**{**vars(last), "ttfts_s": [*last.ttfts_s], "tpots_s": [*last.tpots_s]})
        new.at_s, new.steps = now_s, last.steps + 1
        new.running, new.waiting = rank.num_running, len(rank.waiting)
        new.kv_usage = 1 - rank.free_blocks / rank.num_blocks
        new.preemptions += len(rank.preempted)
        for number in rank.emitting():
            if number in self.last_token_s:
                new.gaps += 1
                new.gap_s += now_s - self.last_token_s[number]
            else:
                new.ttfts_s.append(now_s - table.arrival_s[number])
                new.prompt_tokens += table.prompt_tokens[number]
                self.tokens[number] = (now_s, 0)
            new.tokens += 1
            self.last_token_s[number] = now_s
        for number in rank.finished:
            first_s, _ = self.tokens[number]
            output = table.output_tokens[number]
            new.finished += 1
            new.finished_output += output
            new.tpots_s.append((now_s - first_s) / max(1, output - 1))
        self.notes.append(new)

    def at(self, at_s):
        """What the metrics said at a time: after the last step that had ended."""
        return [note for note in self.notes if note.at_s <= at_s][-1]
