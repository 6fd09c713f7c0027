// How a run goes on after a rank has died or hangs. Plain values and their keys.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

extern const TextRule kHangTime;
extern const TextRule kStateInterval;
extern const TextRule kStateCopies;

// What the hosts that are left do when one is lost. kAuto: kShrink where a smaller number may train, else kWait.
enum class OnHostLoss { kAuto, kWait, kShrink, kFail };
inline constexpr std::array kHostLosses{
    Word<OnHostLoss>{"auto", OnHostLoss::kAuto}, Word<OnHostLoss>{"wait", OnHostLoss::kWait},
    Word<OnHostLoss>{"shrink", OnHostLoss::kShrink}, Word<OnHostLoss>{"fail", OnHostLoss::kFail}};

struct Recovery {
  std::string hang = "auto";      // or "off", or seconds
  std::string interval = "auto";  // or "off", or seconds
  std::string copies = "auto";    // or a number of hosts
  int standby = 1;                // processes of each host that wait to become new ranks
  OnHostLoss on_host_loss = OnHostLoss::kAuto;
  bool operator==(const Recovery&) const = default;

  bool watches_for_hangs() const { return hang != "off"; }
  // Returns the time after which a rank without progress hangs; empty: its own batches decide.
  std::optional<std::chrono::milliseconds> hang_time() const;
  bool keeps_states() const { return interval != "off"; }
  // Returns the seconds between two states in memory; empty: their cost decides.
  std::optional<double> seconds_between_states() const;
  bool asks_for_copies() const { return copies != "auto"; }
  // Returns how many other hosts keep a copy of what is a host's own.
  int copies_among(int hosts) const;
};

class Section;
// Refuses copies of states that are not kept.
void check_copies(Section& section, const Recovery& recovery);
Json what_copies_need();

inline void declare_keys(Keys& keys, Recovery& recovery) {
  keys.text({.name = "hang",
             .text = "The seconds after which a rank that does not get on while others wait for it is ended, and "
                     "started again. auto: 20 times the slowest of the last batches, at least 10; off: never, but "
                     "after communication.timeout.",
             .more = "[More](recovery.md#ranks-that-hang).",
             .examples = R"(["auto", "off", 30])"},
            recovery.hang, kHangTime);
  keys.text({.name = "interval",
             .text = "The seconds between two training states that a run keeps in memory, from which it "
                     "goes on after a rank has died. auto: as often as it costs at most 1% of the time; off: none.",
             .more = "[More](recovery.md#states-in-memory).",
             .examples = R"(["auto", "off", 5])"},
            recovery.interval, kStateInterval);
  keys.text({.name = "copies",
             .text = "On how many other hosts there is a copy of what only the ranks of one host have of such a state "
                     "(sharded moments, error feedback, buffers, metric sums). With 1 the loss of any one host is "
                     "survived; with 0 that of ranks alone, unless the state is on the disk; with the number of hosts "
                     "less one that of all hosts but one. auto: 1.",
             .more = "[More](recovery.md#several-hosts).",
             .examples = R"(["auto", 0, 1, 2])"},
            recovery.copies, kStateCopies);
  keys.integer({"standby",
                "With 1, a process of the program waits on the host of `dtrain launch`, with its libraries loaded, and "
                "new ranks after a failure are forks of it; 0: they are started anew.",
                "[More](recovery.md#new-ranks-from-a-waiting-process)."},
               recovery.standby, {0, 1});
  keys.choice(
      {"on_host_loss",
       "What a run on several hosts with a keeper each does when one of them is lost. wait: the others wait for "
       "it for communication.timeout; shrink: they go on without it, and with it once it is back; fail: the run "
       "ends; auto: shrink where PET_NNODES or resources.elastic allows fewer hosts, else wait.",
       "[More](elastic.md#when-a-host-is-lost)."},
      recovery.on_host_loss, kHostLosses);
  keys.when_read([&](Section& section) { check_copies(section, recovery); });
  keys.schema_rule(what_copies_need);
}

}  // namespace dtrain::config
