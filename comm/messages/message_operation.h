// One outstanding collective that travels as messages: the messages that are still to be sent and received, and their
// use.
//
// Every operation begins with a hello from each rank to each other: its operation descriptor, which all compare. Small
// payloads travel in it, and every rank computes the result for itself. Larger ones are divided into as many parts as
// there are ranks (part_of), and each part into chunks, which flow independently of each other:
//   give    each rank sends its values of part p to rank p (broadcast: the root alone);
//   reduce  rank p sums its part, chunk by chunk, in rank order: own values and received ones;
//   hand out  rank p sends its result to all (reduce: to the root alone).
// Reduce-scatter followed by all-gather: each rank sends and receives 2 (n-1)/n of the payload, the least there is
// (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009), in one hop each.
//
// All calls come from the thread of messages, except timing() and complete().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collective/descriptor.h"
#include "dtrain/comm/communicator.h"
#include "messages/message_transport.h"

namespace dtrain::comm {

// The first message of an operation, as it travels.
struct MessageHello {
  Descriptor descriptor;
  std::byte payload[3840];
};
inline constexpr std::size_t kLargestChunk = 256u << 10;        // bytes of a message of a large operation
inline constexpr std::size_t kHelloBytes = sizeof(Descriptor);  // without the payload, which follows at once
static_assert(sizeof(MessageHello) == kHelloBytes + sizeof(MessageHello::payload));

// Returns the bytes of the longest message of an operation among `world_size` ranks.
std::size_t longest_message(int world_size);

// Messages of one kind between this rank and one peer, a chunk each, in order.
struct Flow {
  std::uint32_t chunks = 0;
  std::uint32_t posted = 0;
  std::uint32_t done = 0;
  bool finished() const { return done == chunks; }
};

// The destinations of an operation's messages: its tags, and the ranks' numbers in the job.
struct MessageRoute {
  int first_tag = 0;         // this operation's: one for each Message
  std::vector<int> members;  // by rank
  int rank = 0;
  int size() const { return static_cast<int>(members.size()); }
};

class MessageOperation {
 public:
  MessageOperation(const Descriptor& descriptor, const void* in, void* out, int rank, int world_size);

  const Descriptor& descriptor() const { return descriptor_; }
  bool is_small() const { return small_; }

  // Sends and expects the hellos. The route must live as long as this.
  void start(const MessageRoute& route, MessageTransport& transport);
  bool started() const { return route_ != nullptr; }
  // True if all peers have entered the operation; theirs(r) is the operation that rank r has entered.
  bool all_entered() const { return entered_ == world_size_; }
  bool has_entered(int r) const { return peers_[index(r)].entered; }
  const Descriptor& theirs(int r) const { return r == rank_ ? descriptor_ : peers_[index(r)].hello->descriptor; }
  // To be called once all ranks' operations are the same and it is this operation's turn to move its data.
  void begin_data();
  bool data_begun() const { return data_begun_; }

  // Records that a message has been sent or has arrived.
  void done(const Message& message);
  // Posts the messages that can be posted and reduces the chunks that have arrived; true if it did anything.
  bool advance(MessageTransport& transport);
  bool finished() const { return finished_; }
  // True if values of rank r are still to come, and if any message between rank r and this rank is left.
  bool owes_values(int r) const { return r != rank_ && !peers_[index(r)].get.finished(); }
  bool has_part_left(int r) const { return r != rank_ && !peers_[index(r)].finished(); }

 private:
  struct Peer {
    std::unique_ptr<MessageHello> hello;
    bool entered = false;
    Flow give, get, hand_out, take;       // sends and receives of values, sends and receives of results
    std::vector<bool> given;              // by chunk of the peer's part: the send is over
    std::unique_ptr<std::byte[]> values;  // room for kWindow chunks of its values
    bool finished() const { return give.finished() && get.finished() && hand_out.finished() && take.finished(); }
  };

  static std::size_t index(int r) { return static_cast<std::size_t>(r); }
  Part part(int r) const;
  std::uint32_t chunks_of(int r) const;
  // Elements of chunk k of rank r's part, in bytes from the part's first.
  std::size_t chunk_begin(std::uint32_t k) const { return k * chunk_bytes_; }
  std::size_t chunk_size(int r, std::uint32_t k) const;
  const std::byte* own_values(int r) const;  // this rank's values for rank r's part
  std::byte* results(int r) const;           // place of rank r's part on this rank, if it gets the part
  bool keeps_result() const { return descriptor_.kind != Kind::kReduce || rank_ == descriptor_.root; }
  bool gives_to(int from, int to) const;
  bool hands_out_to(int from, int to) const;
  int sources() const;

  void finish_small();
  void end();
  void reduce_chunk(std::uint32_t k);
  bool post(MessageTransport& transport);
  void send(MessageTransport& transport, MessageKind kind, int r, const void* data, std::size_t bytes, std::uint32_t k);
  void receive(MessageTransport& transport, MessageKind kind, int r, void* data, std::size_t bytes, std::uint32_t k);

  const Descriptor descriptor_;
  const void* const in_;
  void* const out_;
  const int rank_;
  const int world_size_;
  const std::size_t element_;
  bool small_ = false;
  std::size_t chunk_bytes_ = 0;

  const MessageRoute* route_ = nullptr;
  int entered_ = 1;  // ranks, this one included
  int hellos_sent_ = 0;
  bool data_begun_ = false;
  bool finished_ = false;
  std::vector<Peer> peers_;                                // by rank; this rank's is not used but for its hello
  std::vector<std::unique_ptr<MessageHello>> own_hellos_;  // one for all peers, or one each if they differ
  std::vector<int> arrived_;                // by chunk of this rank's part: number of ranks whose values have arrived
  std::unique_ptr<std::byte[]> passed_on_;  // this rank's part of a result that another rank keeps
  std::uint32_t own_chunks_ = 0;
  std::uint32_t reduced_ = 0;  // chunks of this rank's part that hold the result
};

}  // namespace dtrain::comm
