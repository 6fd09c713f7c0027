// Messages over MPI: the outstanding requests, and the message of each. Used by the MPI thread alone.
#pragma once

#include <mpi.h>

#include <vector>

#include "messages/message_transport.h"

namespace dtrain::comm {

class MpiTransport final : public MessageTransport {
 public:
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {}

  void send(const Message& message, int tag, const void* data, std::size_t bytes) override;
  void receive(const Message& message, int tag, void* data, std::size_t bytes) override;
  bool poll(const std::function<void(const Message&)>& done) override;

 private:
  const MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;  // message of the request with the same index
  std::vector<int> indices_;       // used in poll(), like the next member
  std::vector<MPI_Status> statuses_;
};

}  // namespace dtrain::comm
