// The messages to and from one other rank, as frames in its pipe.
//
// A small message is one frame, which the receiver keeps if no receive has taken it. There is room for kKeptMost bytes
// of them there, and the receiver tells when a part has become free. Every other message is offered, and its bytes
// follow in parts once a receive has taken it. The bytes that come therefore always have a place, so a rank reads
// everything that comes, whatever it waits for: no message is stuck behind another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "mailbox/byte_pipe.h"
#include "mailbox/mail_work.h"

namespace dtrain::comm {

// What becomes of the messages that come, and of those that are over.
class MailSink {
 public:
  virtual ~MailSink() = default;
  // A message or an offer has come. Finds the receive that takes it, if there is one.
  virtual void arrived(const std::shared_ptr<Arrival>& arrival) = 0;
  virtual void started(MailWork& work) = 0;
  virtual void completed(const SharedMail& work) = 0;
  // The receiver of a message of this rank found that it expects another size.
  virtual void differs(int to, const MailHeader& header) = 0;
};

class MailPeer {
 public:
  // `name` is for errors: "rank 2".
  MailPeer(int rank, std::string name, std::unique_ptr<BytePipe> pipe, MailSink& sink)
      : rank_(rank), name_(std::move(name)), pipe_(std::move(pipe)), sink_(sink) {}

  void send(SharedMail work) { messages_.push_back(std::move(work)); }
  // A receive has taken an arrival of this peer.
  void take(Arrival& arrival, SharedMail receive);
  // Tells the peer that the sizes differ; goes before everything else.
  void report(const MailHeader& mismatch) { answers_.push_front(mismatch); }

  // Sends as much as there is room for, or receives as much as there is; true if any byte has moved. read() throws a
  // CommError if the peer sends what it may not send.
  bool write();
  bool read();

  // True while something has to be written that is no message (an answer, or the rest of a frame), and the peer is
  // there.
  bool owes() const { return (!answers_.empty() || current_.has_value() || pipe_->holds_back()) && !pipe_->end(); }
  BytePipe& pipe() { return *pipe_; }
  const std::string& name() const { return name_; }

 private:
  struct Outgoing {
    MailHeader header;
    const std::byte* data = nullptr;
    SharedMail work{};        // null: an answer
    std::size_t written = 0;  // bytes, the header included
    std::size_t bytes() const { return work ? header.bytes : 0; }
  };
  std::optional<Outgoing> next_frame();
  Outgoing next_part();
  void sent(const Outgoing& frame);

  void begin_frame();
  void end_frame();
  void begin_message();
  void begin_part();
  void finish(const SharedMail& receive, Arrival& arrival);
  void free_room(std::size_t bytes);
  MailHeader header_of(MailFrame kind, const MailWork& work, std::uint32_t id, std::size_t bytes) const;
  SharedMail known(std::unordered_map<std::uint32_t, SharedMail>& works) const;
  [[noreturn]] void refuse(const std::string& what) const;

  const int rank_;
  const std::string name_;
  const std::unique_ptr<BytePipe> pipe_;
  MailSink& sink_;

  std::deque<MailHeader> answers_;
  std::deque<SharedMail> messages_;  // not announced
  std::unordered_map<std::uint32_t, SharedMail> offered_;
  std::deque<std::pair<std::uint32_t, SharedMail>> granted_;  // their parts take turns
  std::optional<Outgoing> current_;
  std::uint32_t next_id_ = 0;
  std::size_t room_ = kKeptMost;  // for small messages, at the peer

  MailHeader header_;  // of the frame that comes
  std::size_t header_read_ = 0;
  std::byte* to_ = nullptr;
  std::size_t left_ = 0;              // bytes of it that have not come
  std::shared_ptr<Arrival> arrival_;  // the small message that comes
  SharedMail part_of_;                // the receive of which a part comes
  std::unordered_map<std::uint32_t, SharedMail> receiving_;
  std::size_t used_ = 0;   // of the room for the peer's small messages, as the peer knows it …
  std::size_t freed_ = 0;  // … and the part that is free and not told
};

}  // namespace dtrain::comm
