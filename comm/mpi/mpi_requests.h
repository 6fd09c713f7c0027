// Outstanding MPI requests and what each one is. The MPI thread alone.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace dtrain::comm {

class MpiOperation;

enum class MpiMessageKind : std::uint8_t { kHello, kValues, kResult };

struct MpiMessage {
  MpiOperation* operation = nullptr;
  MpiMessageKind kind = MpiMessageKind::kHello;
  bool received = false;  // else sent
  int peer = 0;           // its rank in the communicator …
  int job_rank = 0;       // … and in the job
  std::uint32_t chunk = 0;
};

class MpiRequests {
 public:
  void add(MPI_Request request, const MpiMessage& message) {
    requests_.push_back(request);
    messages_.push_back(message);
  }
  bool empty() const { return requests_.empty(); }
  // Calls `done` for each that is over, and forgets it; true when one was. CommError when MPI reports an error.
  bool poll(const std::function<void(const MpiMessage&)>& done);

 private:
  std::vector<MPI_Request> requests_;
  std::vector<MpiMessage> messages_;  // of the same index
  std::vector<int> indices_;          // of poll()
  std::vector<MPI_Status> statuses_;
};

}  // namespace dtrain::comm
