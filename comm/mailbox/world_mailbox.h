// The mailbox of one rank of a world: its messages, the peers to which they go, and its waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/mailbox.h"
#include "mailbox/mail_peer.h"
#include "mailbox/mail_work.h"
#include "mailbox/matching.h"
#include "mailbox/ring_memory.h"
#include "mailbox/socket_pipe.h"
#include "shared_memory/memory.h"

namespace dtrain::comm {

struct MailboxSetup {
  int rank = 0;
  RankNames names;
  std::shared_ptr<RingMemory> memory;              // of the ranks of this host
  std::vector<int> here;                           // their ranks, in the order of the memory
  std::shared_ptr<EventLoop> loop;                 // null: all ranks are on this host
  std::vector<std::optional<DataSocket>> sockets;  // by rank, to the ranks of other hosts
  std::function<std::string(int rank)> peer_state;
  CommunicatorOptions options;
};

class WorldMailbox final : public Mailbox, private MailSink {
 public:
  WorldMailbox(MailboxSetup setup, int world_size);
  ~WorldMailbox() override;

  int rank() const override { return setup_.rank; }
  int world_size() const override { return static_cast<int>(others_.size()); }
  Work send(const void* data, std::size_t bytes, int to, Channel channel) override;
  Work receive(void* data, std::size_t bytes, int from, Channel channel) override;
  void progress() override;
  bool outstanding() const override;
  void abort(const std::string& cause) override;

  bool test(MailWork& work);
  void wait_for(MailWork& work);
  std::vector<MissingRank> missing_of(const MailWork& work) const;

 private:
  struct Other {
    std::unique_ptr<MailPeer> peer;  // null: this rank itself
    bool is_here = false;
    Nanoseconds ended{0};  // when it was seen to send nothing more
  };

  SharedMail make_work(bool sends, const void* data, std::size_t bytes, int peer, Channel channel);
  Work issued(const SharedMail& work);
  void send_to_itself(const SharedMail& work);
  void take(Arrival& arrival, const SharedMail& receive);
  [[noreturn]] void report_mismatch(const Arrival& arrival, const MailWork& receive);
  std::string describe_mismatch(int from, int to, Channel channel, std::size_t sent, std::size_t received) const;
  Other& other(int rank) { return others_[static_cast<std::size_t>(rank)]; }

  void arrived(const std::shared_ptr<Arrival>& arrival) override;
  void started(MailWork& work) override;
  void completed(const SharedMail& work) override;
  [[noreturn]] void differs(int to, const MailHeader& header) override;

  bool advance();  // true if anything has moved
  void look_at_sockets(Nanoseconds timeout);
  void write_to(MailPeer& peer);
  void flush(const std::function<bool(MailPeer&)>& is_done);

  // waiting.cpp
  void throw_if_failed(const MailWork* work = nullptr, Nanoseconds since = {});
  [[noreturn]] void fail(const std::string& cause);
  void fail_if_gone(const MailWork& work);
  void nap(std::uint32_t seen, bool is_short);
  void give_up(const std::string& cause);
  std::string describe(const MailWork& work) const;
  std::string describe_waiting(const MailWork& work, Nanoseconds elapsed, const char* verb) const;
  std::string name_of(int rank) const { return setup_.names.of(rank); }
  Nanoseconds now() const { return clock_.monotonic(); }

  MailboxSetup setup_;
  SystemClock clock_;
  std::vector<Other> others_;         // by rank
  std::vector<SocketPipe*> sockets_;  // by rank; null: on this host
  Matching matching_;
  std::map<std::uint64_t, SharedMail> open_;  // the works that are not complete, by sequence
  std::uint64_t sequence_ = 0;
  std::size_t kept_of_own_ = 0;  // bytes of messages of this rank to itself
  Nanoseconds spin_{0};          // time that a wait spins before it yields
  bool failed_ = false;
};

}  // namespace dtrain::comm
