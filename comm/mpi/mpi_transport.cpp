#include "mpi/mpi_transport.h"

#include <string>

#include "dtrain/base/error.h"
#include "mpi/mpi_call.h"

namespace dtrain::comm {

void MpiTransport::send(const Message& message, int tag, const void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_call(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, message.job_rank, tag, comm_, &request), "MPI_Isend");
  requests_.push_back(request);
  messages_.push_back(message);
}

void MpiTransport::receive(const Message& message, int tag, void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_call(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, message.job_rank, tag, comm_, &request), "MPI_Irecv");
  requests_.push_back(request);
  messages_.push_back(message);
}

bool MpiTransport::poll(const std::function<void(const Message&)>& done) {
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) {
      const int error = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
      if (error == MPI_SUCCESS) continue;
      const Message& message = messages_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
      throw CommError(std::string(message.received ? "receiving from" : "sending to") + " rank " +
                      std::to_string(message.job_rank) + " failed: " + mpi_error_text(error));
    }
  }
  mpi_call(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  std::vector<Message> over;
  for (int i = 0; i < count; ++i) {
    over.push_back(messages_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])]);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    messages_[kept++] = messages_[i];
  }
  requests_.resize(kept);
  messages_.resize(kept);
  for (const Message& message : over) done(message);
  return true;
}

}  // namespace dtrain::comm
