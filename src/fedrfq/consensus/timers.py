"""What a replica does when it starts and when a timer expires: above all, it says things again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrfq.consensus.events import (
    DEADLINE,
    RESEND,
    VIEW,
    Broadcast,
    Persist,
    Send,
    SetTimer,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import LIST, Fetch, Message, PartKind

if TYPE_CHECKING:
    from fedrfq.consensus.replica import Replica


def set_timers(replica: Replica) -> None:
    """Set the timers with which a round begins; that of the view starts later."""
    deadline = SetTimer(DEADLINE, replica.roster.deadline_ms)
    resend = SetTimer(RESEND, replica.roster.resend_ms)
    replica.effects += [deadline, SetTimer(VIEW, None), resend]


def start(replica: Replica) -> None:
    """Begin. After a restart, resend what we signed and ask the others what they signed."""
    replica.state_changed = True
    set_timers(replica)
    question = replica.rejoining.question()
    if question is not None:
        replica.effects += [Persist(question), Broadcast(question)]
    is_restart = bool(replica.state.own or replica.certificates.chain)
    if is_restart:
        replica.ask_for_evidence()
    if is_restart and not replica.over:
        _resend(replica)
        replica.effects.append(Broadcast(_fetch_words(replica)))


def _fetch_words(replica: Replica) -> Message:
    """Return the request for what a server has signed last in this round."""
    return replica.rules.unsigned(Fetch(replica.state.round, PartKind.WORDS))


def expire(replica: Replica, timer: Timer) -> None:
    """Do what is due."""
    state = replica.state
    if timer is RESEND:
        _resend(replica)
    # A view's timer may ring late, when we have left the view or the round.
    elif timer is VIEW and state.timing and not replica.silent:
        replica.leave_for(state.view + 1)
    elif timer is DEADLINE:
        state.late = True
        replica.state_changed = True
        _report_too_few(replica)


def _report_too_few(replica: Replica) -> None:
    """Report if too few clients have sent by the deadline, and fetch what others list."""
    held = replica.upload_pool.held
    minimum = replica.roster.minimum
    if held >= minimum or replica.state.over:
        return
    # A silent server fetches too: its silence may end while others wait for its list.
    replica.fetch_listed()
    if not replica.silent:
        replica.effects.append(Waiting(held, minimum))


def _resend(replica: Replica) -> None:
    """Send again what we signed last, and ask again for what is missing, as messages get lost.

    The longer a view lasts, the less often. When the run is over there is nothing left to send.
    """
    if replica.over:
        return
    state = replica.state
    roster = replica.roster
    question = replica.rejoining.question()
    if question is not None:
        replica.effects.append(Broadcast(question))
    replica.effects += [_resent(replica, message) for message in state.latest_signed()]
    replica.effects += [Broadcast(fetch) for fetch in replica.requests.messages()]
    # The view's timer ends a view that is stuck. While it does not run, ask one server after the
    # other for what it signed.
    if roster.n > 1 and not state.timing:
        peer = (replica.me + 1 + state.resends % (roster.n - 1)) % roster.n
        replica.effects.append(Send(peer, _fetch_words(replica)))
    # The server that we asked may not have answered: the next one ahead of us is asked again.
    replica.certificates.requested = False
    replica.effects.append(SetTimer(RESEND, roster.wait_ms(state.resends)))
    state.resends += 1


def _resent(replica: Replica, message: Message) -> Send | Broadcast:
    """Return the effect that resends a message. After view 0 only the leader needs lists."""
    leader = replica.state.leader
    is_for_leader = message.body.kind == LIST and replica.state.view > 0 and leader != replica.me
    if is_for_leader:
        return Send(leader, message)
    return Broadcast(message)
