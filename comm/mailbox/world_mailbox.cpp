#include "mailbox/world_mailbox.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::seconds kLastWordsTake{1};
constexpr std::chrono::microseconds kLastWordsLook{200};

void copy_message(const MailWork& receive, const std::byte* from) {
  if (receive.size > 0 && receive.data != from) std::memmove(receive.data, from, receive.size);
}

}  // namespace

WorldMailbox::WorldMailbox(MailboxSetup setup, int world_size)
    : setup_(std::move(setup)),
      others_(static_cast<std::size_t>(world_size)),
      sockets_(static_cast<std::size_t>(world_size), nullptr) {
  if (!setup_.options.log) setup_.options.log = make_null_logger();
  MailSink& sink = *this;
  const auto add = [&](int rank, std::unique_ptr<BytePipe> pipe) {
    other(rank).peer = std::make_unique<MailPeer>(rank, name_of(rank), std::move(pipe), sink);
  };
  const auto me = static_cast<int>(std::find(setup_.here.begin(), setup_.here.end(), rank()) - setup_.here.begin());
  for (std::size_t i = 0; i < setup_.here.size(); ++i) {
    const int rank = setup_.here[i];
    other(rank).is_here = true;
    if (static_cast<int>(i) != me) add(rank, std::make_unique<RingPipe>(setup_.memory, me, static_cast<int>(i)));
  }
  for (std::size_t r = 0; r < setup_.sockets.size(); ++r) {
    if (!setup_.sockets[r]) continue;
    auto pipe = std::make_unique<SocketPipe>(*std::move(setup_.sockets[r]));
    setup_.loop->add(pipe->fd(), static_cast<std::uint32_t>(r));
    sockets_[r] = pipe.get();
    add(static_cast<int>(r), std::move(pipe));
  }
  setup_.sockets.clear();
  // If ranks outnumber cores, spinning takes the core from the rank that is waited for.
  if (sysconf(_SC_NPROCESSORS_ONLN) >= static_cast<long>(setup_.here.size())) spin_ = std::chrono::microseconds(20);
}

// What this rank has begun to write leaves it first. Works that are not complete fail.
WorldMailbox::~WorldMailbox() {
  try {
    if (!failed_ && !setup_.memory->aborted()) {
      flush([](MailPeer& peer) { return !peer.owes() && peer.pipe().has_delivered(); });
    }
  } catch (const std::exception& error) {
    give_up(error.what());  // no exception may leave a destructor
  }
  setup_.memory->close();
  give_up(name_of(rank()) + " has closed its mailbox");
}

SharedMail WorldMailbox::make_work(bool sends, const void* data, std::size_t bytes, int peer, Channel channel) {
  throw_if_failed();
  if ((peer < 0 || peer >= world_size()) && (sends || peer != kAnyRank)) {
    throw CommError(std::string(sends ? "send to" : "receive from") + " rank " + std::to_string(peer) +
                    ", where the world has " + std::to_string(world_size()) + " ranks");
  }
  auto* const memory = static_cast<std::byte*>(const_cast<void*>(data));
  auto work = std::make_shared<MailWork>(this, sends, memory, bytes, peer, channel, sequence_++);
  work->times.enqueued = now();
  open_.emplace(work->sequence(), work);
  return work;
}

Work WorldMailbox::issued(const SharedMail& work) {
  setup_.memory->wake_touched();
  work->times.exposed = (work->complete ? work->times.ended : now()) - work->times.enqueued;
  return Work(work);
}

Work WorldMailbox::send(const void* data, std::size_t bytes, int to, Channel channel) {
  const SharedMail work = make_work(true, data, bytes, to, channel);
  if (to == rank()) {
    send_to_itself(work);
  } else {
    other(to).peer->send(work);
    write_to(*other(to).peer);
  }
  return issued(work);
}

Work WorldMailbox::receive(void* data, std::size_t bytes, int from, Channel channel) {
  const SharedMail work = make_work(false, data, bytes, from, channel);
  if (const auto arrival = matching_.take_arrival(from, channel)) {
    take(*arrival, work);
    if (const auto& peer = other(arrival->from).peer) write_to(*peer);  // the grant
  } else {
    matching_.add(work);
  }
  return issued(work);
}

void WorldMailbox::send_to_itself(const SharedMail& work) {
  started(*work);
  const auto arrival = std::make_shared<Arrival>();
  arrival->from = rank();
  arrival->channel = work->channel;
  arrival->bytes = work->size;
  arrival->own = work;
  if (const SharedMail receive = matching_.take_receive(rank(), work->channel)) return take(*arrival, receive);
  const std::size_t cost = work->size + kKeptOverhead;
  if (work->size <= kEagerMost && kept_of_own_ + cost <= kKeptMost) {
    kept_of_own_ += cost;
    arrival->kept = std::make_unique_for_overwrite<std::byte[]>(work->size);
    if (work->size > 0) std::memcpy(arrival->kept.get(), work->data, work->size);
    arrival->own = nullptr;
    completed(work);
  }
  matching_.add(arrival);
}

void WorldMailbox::arrived(const std::shared_ptr<Arrival>& arrival) {
  if (const SharedMail receive = matching_.take_receive(arrival->from, arrival->channel)) {
    take(*arrival, receive);
  } else {
    matching_.add(arrival);
  }
}

void WorldMailbox::take(Arrival& arrival, const SharedMail& receive) {
  if (arrival.bytes != receive->size) report_mismatch(arrival, *receive);
  started(*receive);
  receive->from = arrival.from;
  if (const auto& peer = other(arrival.from).peer) return peer->take(arrival, receive);
  copy_message(*receive, arrival.own ? arrival.own->data : arrival.kept.get());
  if (arrival.own) {
    completed(arrival.own);
  } else {
    kept_of_own_ -= arrival.bytes + kKeptOverhead;
  }
  completed(receive);
}

void WorldMailbox::started(MailWork& work) {
  if (work.times.started.count() == 0) work.times.started = now();
}

void WorldMailbox::completed(const SharedMail& work) {
  work->times.ended = now();
  work->complete = true;
  open_.erase(work->sequence());
}

std::string WorldMailbox::describe_mismatch(int from, int to, Channel channel, std::size_t sent,
                                            std::size_t received) const {
  const std::string where = ", group " + std::to_string(channel.group) + ", tag " + std::to_string(channel.tag) + ")";
  return "the sizes of a message differ: " + name_of(from) + " send(" + std::to_string(sent) + " bytes to " +
         name_of(to) + where + ", " + name_of(to) + " receive(" + std::to_string(received) + " bytes from " +
         name_of(from) + where;
}

// The sender on another host hears of it from this rank; on this host it gets the cause from the shared memory.
void WorldMailbox::report_mismatch(const Arrival& arrival, const MailWork& receive) {
  const Other& sender = other(arrival.from);
  if (!sender.is_here) {
    sender.peer->report({.kind = MailFrame::kMismatch,
                         .group = arrival.channel.group,
                         .tag = arrival.channel.tag,
                         .bytes = arrival.bytes,
                         .other = receive.size});
    flush([&](MailPeer& peer) { return &peer != sender.peer.get() || !peer.owes(); });
  }
  fail(describe_mismatch(arrival.from, rank(), arrival.channel, arrival.bytes, receive.size));
}

void WorldMailbox::differs(int to, const MailHeader& header) {
  fail(describe_mismatch(rank(), to, header.channel(), header.bytes, header.other));
}

// Writes until each peer is done or gone, for a second at most.
void WorldMailbox::flush(const std::function<bool(MailPeer&)>& is_done) {
  const Nanoseconds deadline = now() + kLastWordsTake;
  for (bool all = false; !all && now() < deadline && !setup_.memory->aborted();) {
    all = true;
    for (const Other& one : others_) {
      if (!one.peer || one.peer->pipe().end()) continue;
      one.peer->write();
      all = is_done(*one.peer) && all;
    }
    setup_.memory->wake_touched();
    if (all) return;
    if (setup_.loop) look_at_sockets(Nanoseconds{0});
    std::this_thread::sleep_for(kLastWordsLook);
  }
}

void WorldMailbox::look_at_sockets(Nanoseconds timeout) {
  setup_.loop->wait(timeout);
  for (const EventLoop::Event& event : setup_.loop->events()) sockets_[event.token]->note(event);
  setup_.loop->events().clear();
}

bool WorldMailbox::advance() {
  if (setup_.loop) look_at_sockets(Nanoseconds{0});
  bool moved = false;
  try {
    for (const Other& one : others_) {
      if (!one.peer) continue;
      moved = one.peer->read() || moved;
      moved = one.peer->write() || moved;
    }
  } catch (const std::exception& error) {
    if (failed_) throw;
    fail(name_of(rank()) + ": " + error.what());
  }
  setup_.memory->wake_touched();
  return moved;
}

// The host may have no memory for another ring.
void WorldMailbox::write_to(MailPeer& peer) {
  try {
    peer.write();
  } catch (const std::exception& error) {
    fail(name_of(rank()) + ": " + error.what());
  }
}

void WorldMailbox::progress() {
  throw_if_failed();
  advance();
}

bool WorldMailbox::outstanding() const {
  if (failed_) return false;
  return !open_.empty() ||
         std::any_of(others_.begin(), others_.end(), [](const Other& one) { return one.peer && one.peer->owes(); });
}

void WorldMailbox::abort(const std::string& cause) {
  setup_.memory->abort(cause);
  if (setup_.loop) setup_.loop->wake();
}

}  // namespace dtrain::comm
