#include "rank/mpi_arrival.h"

#include <chrono>
#include <functional>
#include <thread>

#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

constexpr int kMostNamed = 16;
constexpr std::chrono::milliseconds kOthersLook{500};  // their deadlines pass a little later

}  // namespace

MpiArrival::MpiArrival(const comm::World& world, const std::string& job, PlaneLink* plane)
    : world_(world), job_(std::to_string(std::hash<std::string>{}(job))), plane_(plane) {
  if (plane_) {
    plane_->enter_mpi();
    return;
  }
  try {
    mark_ = UnixListener::create_named(mark_of(world_.rank));
  } catch (const SystemError&) {
    // The name is taken. A time-out may then list this rank too; nothing else changes.
  }
}

std::string MpiArrival::mark_of(int rank) const {
  return "dtrain-mpi-" + std::to_string(::geteuid()) + "-" + job_ + "-" + std::to_string(rank);
}

bool MpiArrival::has_come(int rank) const {
  if (rank == world_.rank) return true;
  if (plane_) return plane_->has_entered_mpi(rank);
  try {
    (void)UnixSocket::connect(mark_of(rank), std::chrono::milliseconds(0));
    return true;
  } catch (const SystemError&) {
    return false;
  }
}

std::string MpiArrival::missing() const {
  std::string text;
  int named = 0;
  for (int rank = 0; rank < world_.size && named <= kMostNamed; ++rank) {
    if (has_come(rank)) continue;
    if (++named > kMostNamed) {
      text += " and more";
    } else {
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
  }
  if (mark_) std::this_thread::sleep_for(kOthersLook);  // ranks whose deadline comes later still see this one
  if (text.empty()) return "no rank: MPI itself does not start";
  const bool others = !plane_ && world_.local_size < world_.size;
  return others ? text + " (or they are on other hosts, which cannot be seen from here)" : text;
}

}  // namespace dtrain::run
