#include "exchange/logical_peers.h"

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "model/tensor_memory.h"

namespace dtrain::train {
namespace {

at::ScalarType scalar_type_of(comm::DataType type) {
  switch (type) {
    case comm::DataType::kFloat16:
      return at::kHalf;
    case comm::DataType::kBfloat16:
      return at::kBFloat16;
    case comm::DataType::kFloat32:
      return at::kFloat;
    case comm::DataType::kFloat64:
      return at::kDouble;
    default:
      throw Error("a compressor reduces numbers of an unknown type");
  }
}

class SharedPieces final : public comm::Buffer {
 public:
  explicit SharedPieces(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() override { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
};

class OwnMemory final : public comm::Buffer {
 public:
  explicit OwnMemory(std::size_t bytes) : memory_(at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte)) {}
  std::span<std::byte> bytes() override {
    return {FlatMemory::address(memory_), static_cast<std::size_t>(memory_.numel())};
  }

 private:
  const at::Tensor memory_;
};

}  // namespace

class LogicalPeers::Operation {
 public:
  explicit Operation(std::size_t bytes) : bytes_(bytes) {}
  virtual ~Operation() = default;

  // Called for each logical rank of this rank, in their order.
  virtual void add(int logical_rank, void* data) = 0;
  // Completes the operation, once. Collective.
  void complete() {
    if (!std::exchange(complete_, true)) run();
  }
  // Puts the result where the data of a logical rank is.
  virtual void give(void* data) const = 0;
  std::size_t bytes() const { return bytes_; }

 protected:
  virtual void run() = 0;

 private:
  const std::size_t bytes_;
  bool complete_ = false;
};

// Sums of narrow numbers are made in float32. They travel as they are where these are fewer bytes than the sums.
class LogicalPeers::Reduction final : public Operation {
 public:
  using Parts = TreeExchange::Parts;
  Reduction(LogicalPeers& peers, std::size_t count, comm::DataType type, const comm::ReduceOptions& options)
      : Operation(count * comm::size_of(type)),
        peers_(peers),
        count_(static_cast<std::int64_t>(count)),
        type_(scalar_type_of(type)),
        is_narrow_(comm::size_of(type) < sizeof(float)),
        parts_(parts_of(peers.exchange_, count)),
        scale_(options.post_scale),
        sum_(peers.exchange_, parts_) {
    if (options.op != comm::ReduceOp::kSum || options.pre_scale != 1) throw Error("a compressor does not make sums");
  }

  void add(int logical_rank, void* data) override {
    result_ = at::from_blob(data, {count_}, type_);
    if (is_narrow_ && parts_ == Parts::kSubtrees) result_ = result_.to(at::kFloat);
    sum_.add(logical_rank, result_);
  }
  void give(void* data) const override {
    if (result_.data_ptr() != data) std::memcpy(data, result_.data_ptr(), bytes());
  }

 private:
  void run() override {
    peers_.sent_bytes_ += peers_.exchange_.cost(parts_, static_cast<std::size_t>(count_) * result_.element_size());
    sum_.finish();
    if (scale_ != 1) result_.mul_(scale_);
    result_ = result_.to(type_);
  }
  Parts parts_of(const TreeExchange& exchange, std::size_t count) const {
    if (!is_narrow_) return Parts::kSubtrees;
    const bool fewer = exchange.cost(Parts::kLeaves, bytes()) < exchange.cost(Parts::kSubtrees, count * sizeof(float));
    return fewer ? Parts::kLeaves : Parts::kSubtrees;
  }

  LogicalPeers& peers_;
  const std::int64_t count_;
  const at::ScalarType type_;
  const bool is_narrow_;
  const Parts parts_;
  const double scale_;
  TreeSum sum_;
  at::Tensor result_;  // before run() the values that were added last
};

// The logical ranks of this rank write into memory that they share, so only the ranks exchange something.
class LogicalPeers::Gathering final : public Operation {
 public:
  Gathering(LogicalPeers& peers, void* all, std::size_t bytes)
      : Operation(bytes * static_cast<std::size_t>(peers.exchange_.ranks().size)),
        peers_(peers),
        all_(static_cast<std::byte*>(all)),
        own_bytes_(bytes) {}

  void add(int logical_rank, void* data) override {
    if (data != all_ + own_bytes_ * static_cast<std::size_t>(logical_rank)) {
      throw Error("a compressor gathers from memory that logical ranks do not share");
    }
  }
  void give(void* /*data*/) const override {}

 private:
  void run() override {
    peers_.sent_bytes_ += peers_.exchange_.cost_of_gather(own_bytes_);
    peers_.exchange_.gather(all_, own_bytes_);
  }

  LogicalPeers& peers_;
  std::byte* const all_;
  const std::size_t own_bytes_;
};

class LogicalPeers::WorkOfPeer final : public comm::WorkState {
 public:
  WorkOfPeer(std::shared_ptr<Operation> operation, void* data) : operation_(std::move(operation)), data_(data) {}
  bool test() override { return done_; }
  void wait() override {
    if (std::exchange(done_, true)) return;
    operation_->complete();
    operation_->give(data_);
  }
  comm::WorkTiming timing() const override { return {}; }
  std::size_t bytes() const override { return operation_->bytes(); }
  std::uint64_t sequence() const override { return 0; }

 private:
  const std::shared_ptr<Operation> operation_;
  void* const data_;
  bool done_ = false;
};

class LogicalPeers::Peer final : public comm::CompressionPeers {
 public:
  Peer(LogicalPeers& all, int rank) : all_(all), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return all_.exchange_.ranks().size; }
  // Only memory of what is gathered may be common: codecs change the sums that they have got.
  std::unique_ptr<comm::Buffer> allocate(std::size_t bytes) override {
    if (!all_.gathers_) return std::make_unique<OwnMemory>(bytes);
    if (!all_.gathered_) all_.gathered_ = all_.communicator_.allocate(bytes);
    return std::make_unique<SharedPieces>(all_.gathered_->bytes());
  }
  comm::Work all_reduce(void* data, std::size_t count, comm::DataType type,
                        const comm::ReduceOptions& options) override {
    if (is_first()) all_.operations_.push_back(std::make_shared<Reduction>(all_, count, type, options));
    return issue(data);
  }
  comm::Work all_gather(const void* in, void* out, std::size_t count, comm::DataType type, int /*bucket*/) override {
    const std::size_t bytes = count * comm::size_of(type);
    if (is_first()) all_.operations_.push_back(std::make_shared<Gathering>(all_, out, bytes));
    return issue(static_cast<std::byte*>(out) + (static_cast<const std::byte*>(in) - static_cast<std::byte*>(out)));
  }
  void end_step() { issued_ = 0; }

 private:
  bool is_first() const { return issued_ == all_.operations_.size(); }
  comm::Work issue(void* data) {
    std::shared_ptr<Operation> operation = all_.operations_[issued_++];
    operation->add(rank_, data);
    return comm::Work(std::make_shared<WorkOfPeer>(std::move(operation), data));
  }

  LogicalPeers& all_;
  const int rank_;
  std::size_t issued_ = 0;  // operations in this step
};

LogicalPeers::LogicalPeers(comm::Communicator& communicator, TreeExchange& exchange, bool gathers)
    : communicator_(communicator), exchange_(exchange), gathers_(gathers) {
  for (int logical = exchange.ranks().begin; logical < exchange.ranks().end; ++logical) {
    peers_.push_back(std::make_unique<Peer>(*this, logical));
  }
}

LogicalPeers::~LogicalPeers() = default;

comm::CompressionPeers& LogicalPeers::peer(std::size_t index) {
  return *peers_[index];
}

double LogicalPeers::end_step() {
  operations_.clear();
  for (const auto& peer : peers_) peer->end_step();
  return std::exchange(sent_bytes_, 0);
}

}  // namespace dtrain::train
