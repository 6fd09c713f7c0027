// The waits of a mailbox, and the errors that end them.
#include <sched.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "mailbox/world_mailbox.h"

namespace dtrain::comm {
namespace {

constexpr unsigned kLooksOfATick = 16;                     // while spinning, between two readings of the clock
constexpr std::chrono::microseconds kMailYielding{200};    // after spinning, before sleeping
constexpr std::chrono::milliseconds kLongestMailSleep{5};  // bounds the cost of a lost wake-up
constexpr std::chrono::microseconds kShortMailSleep{200};

// While armed, the ranks of this host see that this one needs a futex call to wake up.
class SleepAnnouncement {
 public:
  explicit SleepAnnouncement(const RingMemory& memory) : memory_(memory) {}
  ~SleepAnnouncement() { set(false); }
  SleepAnnouncement& operator=(SleepAnnouncement&&) = delete;
  bool armed() const { return armed_; }
  void set(bool armed) {
    if (armed != armed_) memory_.announce_sleep(armed);
    armed_ = armed;
  }

 private:
  const RingMemory& memory_;
  bool armed_ = false;
};

}  // namespace

bool MailWork::test() {
  if (complete) return true;
  if (!failed_.empty()) throw CommError(failed_);
  return mailbox_->test(*this);
}

void MailWork::wait() {
  if (complete) return;
  if (!failed_.empty()) throw CommError(failed_);
  mailbox_->wait_for(*this);
}

std::vector<MissingRank> MailWork::missing() const {
  return complete || !mailbox_ ? std::vector<MissingRank>{} : mailbox_->missing_of(*this);
}

bool WorldMailbox::test(MailWork& work) {
  throw_if_failed(&work, work.times.enqueued);
  advance();
  if (!work.complete) fail_if_gone(work);
  return work.complete;
}

void WorldMailbox::wait_for(MailWork& work) {
  const Nanoseconds began = now();
  Nanoseconds idle_since = began;
  bool warned = false;
  SleepAnnouncement sleep(*setup_.memory);
  for (unsigned looks = 1;; ++looks) {
    const std::uint32_t seen = setup_.memory->word();  // read first: every later event changes it
    throw_if_failed(&work, began);
    const bool moved = advance();
    if (work.complete) break;
    if (moved) {
      sleep.set(false);
      idle_since = now();
      continue;
    }
    if (spin_ > Nanoseconds{0} && looks % kLooksOfATick != 0 && !sleep.armed()) continue;
    const bool elsewhere = setup_.options.while_waiting && setup_.options.while_waiting();
    if (work.complete) break;
    const Nanoseconds time = now();
    const Nanoseconds idle = time - idle_since;
    if (idle < spin_) continue;
    if (time - began > setup_.options.timeout) {
      try {
        fail(name_of(rank()) + ": " + describe_waiting(work, setup_.options.timeout, "timed out after"));
      } catch (const CommError& error) {
        throw TimedOut(error);
      }
    }
    fail_if_gone(work);
    if (!warned && time - began > setup_.options.warn_after) {
      warned = true;
      setup_.options.log->warn("{}: {}", name_of(rank()), describe_waiting(work, time - began, "has waited for"));
    }
    if (idle < spin_ + kMailYielding) {
      sched_yield();
    } else if (!sleep.armed()) {
      sleep.set(true);  // then looks once more: a rank that moves from now on wakes this one
    } else {
      nap(seen, elsewhere);
    }
  }
  work.times.exposed += work.times.ended - began;
}

// A futex and a set of sockets cannot be waited for in one call.
void WorldMailbox::nap(std::uint32_t seen, bool is_short) {
  const auto sleep = [&](std::chrono::nanoseconds time) { setup_.memory->sleep(seen, time.count()); };
  if (is_short) return sleep(kShortMailSleep);
  if (!setup_.loop) return sleep(kLongestMailSleep);
  bool near = false;
  bool far = false;
  for (const auto& [sequence, work] : open_) {
    const bool here = work->peer != kAnyRank && other(work->peer).is_here;
    near = near || here || (work->peer == kAnyRank && setup_.here.size() > 1);
    far = far || !here;
  }
  if (!far) return sleep(kLongestMailSleep);
  if (near) return sleep(kShortMailSleep);
  look_at_sockets(kLongestMailSleep);
}

void WorldMailbox::throw_if_failed(const MailWork* work, Nanoseconds since) {
  if (!setup_.memory->aborted()) return;
  const std::string cause = setup_.memory->abort_cause();
  give_up(cause);
  if (!work) throw CommError(cause);
  throw CommError(describe(*work) + ", was stopped after " + format_duration(now() - since) + ": " + cause);
}

void WorldMailbox::fail(const std::string& cause) {
  setup_.memory->abort(cause);
  const std::string first = setup_.memory->abort_cause();
  give_up(first);
  throw CommError(first);
}

// A rank that is gone, when the control plane has had the time to report why.
void WorldMailbox::fail_if_gone(const MailWork& work) {
  const auto gone = [&](int rank) {
    Other& one = other(rank);
    const auto end = one.peer ? one.peer->pipe().end() : std::nullopt;
    if (!end) return false;
    if (one.ended.count() == 0) one.ended = now();
    return now() - one.ended > end->patience;
  };
  bool all = true;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (work.peer == rank || (work.peer == kAnyRank && rank != this->rank())) all = gone(rank) && all;
  }
  if (!all || (work.peer == kAnyRank && world_size() == 1)) return;
  fail(name_of(rank()) + ": " + describe_waiting(work, now() - work.times.enqueued, "was given up after"));
}

std::string WorldMailbox::describe(const MailWork& work) const {
  const std::string peer = work.peer == kAnyRank ? "any rank" : name_of(work.peer);
  return std::string(work.sends ? "send(" : "receive(") + std::to_string(work.size) + " bytes " +
         (work.sends ? "to " : "from ") + peer + ", group " + std::to_string(work.channel.group) + ", tag " +
         std::to_string(work.channel.tag) + "), message " + std::to_string(work.sequence());
}

std::string WorldMailbox::describe_waiting(const MailWork& work, Nanoseconds elapsed, const char* verb) const {
  std::string text = describe(work) + ", " + verb + " " + format_duration(elapsed);
  if (setup_.memory->aborted()) return text;
  const char* before = "; missing: ";
  for (const MissingRank& missing : missing_of(work)) {
    text += before + name_of(missing.rank) + " " + missing.lacks;
    before = "; ";
  }
  return text;
}

std::vector<MissingRank> WorldMailbox::missing_of(const MailWork& work) const {
  std::vector<MissingRank> missing;
  const char* const lacks = work.sends ? (work.granted ? "has not received all of it" : "has not received it")
                                       : (work.from >= 0 ? "has not sent all of it" : "has not sent it");
  for (int rank = 0; rank < world_size(); ++rank) {
    const bool concerns = work.peer == rank || work.from == rank ||
                          (work.peer == kAnyRank && work.from < 0 && (rank != this->rank() || world_size() == 1));
    if (!concerns) continue;
    std::string text = lacks;
    const auto& peer = others_[static_cast<std::size_t>(rank)].peer;
    if (const auto end = peer ? peer->pipe().end() : std::nullopt) text += " and " + end->why;
    const std::string state = peer && setup_.peer_state ? setup_.peer_state(rank) : std::string();
    if (!state.empty()) text += " (" + state + ")";
    missing.push_back({rank, std::move(text)});
  }
  return missing;
}

void WorldMailbox::give_up(const std::string& cause) {
  failed_ = true;
  for (const auto& [sequence, work] : open_) work->fail(cause);
  open_.clear();
  matching_.clear();
}

}  // namespace dtrain::comm
