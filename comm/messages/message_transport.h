// The interface by which the messages of collectives travel between ranks, over MPI or TCP, and the communicator that
// is made from an implementation of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "messages/message_thread.h"

namespace dtrain::comm {

class MessageOperation;

enum class MessageKind : std::uint8_t { kHello, kValues, kResult };

struct Message {
  MessageOperation* operation = nullptr;
  MessageKind kind = MessageKind::kHello;
  bool received = false;  // else sent
  int peer = 0;           // its rank in the communicator …
  int job_rank = 0;       // … and in the job
  std::uint32_t chunk = 0;
};

// Messages between two ranks with one tag arrive in the order in which they were sent. All calls come from the thread
// that calls poll(); CommError if a peer cannot be reached.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;
  // Sends a message. The data must not change until poll() reports the message.
  virtual void send(const Message& message, int tag, const void* data, std::size_t bytes) = 0;
  // Begins to receive a message of at most `bytes`.
  virtual void receive(const Message& message, int tag, void* data, std::size_t bytes) = 0;
  // Calls `done` for each message that is over, and forgets the message; true if there was one.
  virtual bool poll(const std::function<void(const Message&)>& done) = 0;
  // Called at the end of each look: sends what send() has put off; true if poll() has something to report.
  virtual bool flush() { return false; }
  // True if messages that their receiver does not expect yet take memory there without a limit. Values are then sent
  // only to ranks that have entered the operation.
  virtual bool keeps_unexpected() const { return false; }
  // True if it uses the operations' memory within its calls alone: then they can be released after a failure.
  virtual bool uses_memory_in_calls_alone() const { return false; }
};

struct MessageSetup {
  std::string backend;                    // its name: "mpi"
  std::shared_ptr<MessageShared> shared;  // shared by all communicators of the transport
  std::unique_ptr<MessageTransport> transport;
  int number = 0;            // number among the communicators of the transport; chooses the tags
  std::vector<int> members;  // ranks of the job, by rank
  int rank = 0;
  std::function<std::string(int rank)> peer_state{};  // make_message_communicator() sets it
  CommunicatorOptions options;
};

// Makes a communicator whose collectives travel as messages. Its reductions are made by our own code, in rank order:
// the transport does not change their bits. Collective over `control`, which must outlive the communicator.
std::unique_ptr<Communicator> make_message_communicator(MessageSetup setup, ControlPlane& control);

}  // namespace dtrain::comm
