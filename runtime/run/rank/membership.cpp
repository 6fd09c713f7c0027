#include "rank/membership.h"

#include <numeric>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/hierarchical.h"

namespace dtrain::run {

Membership::~Membership() = default;

void Membership::enter(std::unique_ptr<comm::ControlPlane> control) {
  if (mpi_ && control->world().size != mpi_->size()) {
    throw CommError("a generation of " + std::to_string(control->world().size) + " ranks cannot use an MPI job of " +
                    std::to_string(mpi_->size()));
  }
  release_communicators();
  control_ = std::move(control);
  world_ = control_->world();
  if (on_failure_) control_->on_failure(on_failure_);
}

void Membership::make_communicator(const std::string& backend, const comm::CommunicatorOptions& options) {
  const auto over_shm = [&](comm::ControlPlane& some, const std::vector<int>& members) {
    return comm::make_shm_communicator(some, options, members);
  };
  const auto over_mpi = [&](comm::ControlPlane& some, const std::vector<int>& members) {
    return mpi_->make_communicator(some, members, options);
  };
  std::vector<int> all(static_cast<std::size_t>(world_.size));
  std::iota(all.begin(), all.end(), 0);
  if (backend == "shm" || world_.size == 1) {
    communicator_ = over_shm(*control_, all);
  } else if (backend == "mpi") {
    communicator_ = over_mpi(*control_, all);
  } else {
    communicator_ = comm::make_hierarchical_communicator(*control_, over_shm, over_mpi, options);
  }
}

void Membership::make_device_communicator(const comm::NcclOptions& nccl, const comm::CommunicatorOptions& options) {
  device_communicator_ = comm::make_nccl_communicator(*control_, nccl, options);
}

void Membership::release_communicators() {
  device_communicator_.reset();
  communicator_.reset();
}

void Membership::on_failure(std::function<void(const comm::RankFailure&)> callback) {
  on_failure_ = std::move(callback);
  if (control_) control_->on_failure(on_failure_);
}

}  // namespace dtrain::run
