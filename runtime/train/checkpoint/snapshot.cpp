#include "checkpoint/snapshot.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/assemble.h"
#include "exchange/updater.h"
#include "model/tensor_memory.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

bool all_contiguous(const FlatParameters& parameters) {
  const auto all = parameters.parameters();
  return std::all_of(all.begin(), all.end(), [](const auto& parameter) { return parameter.gradient.is_contiguous(); });
}

// Lets the calling thread run on all cores that the host grants to this process.
void run_anywhere() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  ::sched_setaffinity(0, sizeof all, &all);
}

// True if all ranks see the same folder. A file that rank 0 writes shows it.
bool see_same_folder(comm::ControlPlane& control, const std::filesystem::path& folder) {
  constexpr const char* kKey = "train/checkpoint-folder";
  const bool first = control.world().rank == 0;
  std::filesystem::path sign;
  std::string failure;
  if (first) {
    try {
      make_folder(folder);
      sign = folder / (".seen-by-all-hosts-" + random_hex(8));
      write_file_atomic(sign, "");
    } catch (const SystemError& error) {
      failure = error.what();
    }
    control.set(kKey, Json{{"sign", sign.string()}, {"failure", failure}}.dump());
  }
  const Json told = Json::parse(control.get(kKey));
  if (const auto text = told["failure"].get<std::string>(); !text.empty()) {
    throw Error(text, "give checkpoint_storage a folder that can be written to");
  }
  std::error_code code;
  const bool seen = std::filesystem::exists(told["sign"].get<std::string>(), code);
  const auto answers = control.gather("train/checkpoint-folder-seen", seen ? "yes" : "no");
  if (first) std::filesystem::remove(sign, code);
  return std::all_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer == "yes"; });
}

}  // namespace

Snapshot::Snapshot(rank::RankSession& session, TrainingStep& step, const CheckpointHosts& hosts, TensorNames names,
                   std::function<void(StateVisitor&)> visit)
    : session_(session), step_(step), hosts_(hosts), names_(std::move(names)), visit_(std::move(visit)) {}

void Snapshot::make_memory(std::size_t shared_bytes, std::size_t largest_own) {
  memory_.reset();
  number_ = 0;
  shared_bytes_ = shared_bytes;
  own_capacity_ = pages(largest_own + largest_own / 4);
  const auto ranks_here = static_cast<int>(hosts_.ranks_here.size());
  const std::size_t bytes = own_offset(hosts_.folder_is_shared ? ranks_here : session_.world().size);
  SharedMemory memory = session_.share_on_host(
      "checkpoint-memory-" + std::to_string(memories_++),
      [&] { return checkpoints::SnapshotMemory::create(bytes, ranks_here); }, comm::HostAccess::kWrite);
  memory_.emplace(std::move(memory), ranks_here);
  copy_.reset();  // its updates copied into the memory before this one
}

bool Snapshot::on_host() const {
  return step_.parameters().memory().on_host();
}

std::optional<std::vector<FlatRange>> Snapshot::own_ranges() const {
  if (hosts_.hosts > 1 || !step_.state_is_shared() || !all_contiguous(step_.parameters())) return std::nullopt;
  auto ranges = step_.copied_ranges();
  if (ranges) {
    std::sort(ranges->begin(), ranges->end(), [](const FlatRange& a, const FlatRange& b) {
      return a.group != b.group ? a.group < b.group : a.begin < b.begin;
    });
  }
  return ranges;
}

void Snapshot::reserve() {
  const auto ranges = own_ranges();
  const StateImage image(
      {.rank = session_.world().rank, .shared = step_.state_is_shared(), .later = ranges.has_value(), .names = names_},
      visit_);
  fit(image, sizes_of_own(image));
  if (hosts_.saves()) prefault(image, ranges);
}

// A stretch of a parameter's elements in memory is one of its file if the parameter is contiguous. The optimizer's file
// also has the parameters that are left out of the model's.
bool Snapshot::is_divided() const {
  const bool has_stretches = names_.left_out.empty() && all_contiguous(step_.parameters());
  return kept_ && hosts_.hosts > 1 && has_stretches && step_.divided_state();
}

std::optional<FileImage> Snapshot::own_moments() const {
  if (!is_divided()) return std::nullopt;
  const auto ranges = step_.divided_state();
  FlatOptimizer& optimizer = step_.optimizer();
  const std::vector<std::string> names = optimizer.state_names();
  FileImage image;
  for_each_part(*ranges, [&](const FlatRange& part, const FlatParameters::Parameter& parameter, std::size_t) {
    // The padding after a parameter is not in the optimizer's file.
    const std::int64_t end = std::min(part.end, parameter.offset + parameter.tensor.numel());
    if (part.begin >= end) return;
    for (std::size_t s = 0; s < names.size(); ++s) {
      image.add(checkpoints::moments_name(names[s] + "/" + parameter.name, part.begin - parameter.offset),
                optimizer.state_slice({part.group, part.begin, end}, s));
    }
  });
  image.lay_out();
  return image;
}

std::vector<std::int64_t> Snapshot::sizes_of_own(const StateImage& image, const std::optional<FileImage>& moments) {
  const auto rank = static_cast<std::size_t>(session_.world().rank),
             ranks = static_cast<std::size_t>(session_.world().size);
  std::vector<std::int64_t> sizes(2 * ranks + 1);
  sizes[rank] = static_cast<std::int64_t>(image.own().bytes());
  sizes[ranks + rank] = moments ? static_cast<std::int64_t>(moments->bytes()) : 0;
  // The savers of all hosts know by rank 0's time that they write the same snapshot.
  if (rank == 0) sizes.back() = session_.clock().wall().count();
  session_.communicator().all_reduce(sizes.data(), sizes.size(), comm::DataType::kInt64).wait();
  taken_ = Nanoseconds(sizes.back());
  own_sizes_.clear();
  for (std::size_t r = 0; r < ranks; ++r) own_sizes_.push_back({sizes[r], sizes[ranks + r]});
  sizes.resize(ranks);
  return sizes;
}

void Snapshot::fit(const StateImage& image, const std::vector<std::int64_t>& sizes) {
  const auto largest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  const std::size_t shared = hosts_.host == 0 ? pages(image.model().bytes()) + pages(image.optimizer().bytes()) : 0;
  const bool other_sizes = image.model().bytes() != model_bytes_ || image.optimizer().bytes() != optimizer_bytes_;
  if (kept_ && other_sizes) throw Error("the training state has other sizes than at the first state in memory");
  const bool needs_memory = !memory_ || largest > own_capacity_ || shared > shared_bytes_;
  if (hosts_.saves() && !kept_ && needs_memory) make_memory(shared, largest);
  note_places(image);
}

void Snapshot::note_places(const StateImage& image) {
  model_bytes_ = image.model().bytes();
  optimizer_bytes_ = image.optimizer().bytes();
  in_model_ = image.model().offsets();
  in_optimizer_ = image.optimizer().offsets();
  for (auto& [name, offset] : in_optimizer_) offset += pages(model_bytes_);
}

StateImage Snapshot::lay_out() {
  StateImage image({.rank = session_.world().rank, .shared = step_.state_is_shared(), .later = true, .names = names_},
                   visit_);
  note_places(image);
  const std::vector<std::int64_t> sizes = sizes_of_own(image, own_moments());
  largest_own_ = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  return image;
}

// The copying threads may run on all cores of the host: those of ranks that have ended are free.
void Snapshot::copy_all_now(int threads) const {
  std::vector<FlatRange> parts;
  for (const FlatRange& group : whole_groups(step_.parameters())) {
    const std::int64_t size = std::max<std::int64_t>((group.size() + threads - 1) / threads, 1);
    for (std::int64_t begin = group.begin; begin < group.end; begin += size) {
      parts.push_back({group.group, begin, std::min(begin + size, group.end)});
    }
  }
  std::vector<std::shared_ptr<UpdateCopy>> copies;
  for (const FlatRange& part : parts) copies.push_back(make_copy({part}, /*in_two=*/false));
  std::vector<std::jthread> others;
  for (const auto& copy : copies) {
    others.emplace_back([&copy = *copy] {
      run_anywhere();
      copy.finish();
    });
  }
}

std::size_t Snapshot::place_of_optimizer() const {
  return pages(model_bytes_);
}

std::byte* Snapshot::place_in_model(const std::string& name) const {
  const auto found = in_model_.find(name);
  return found == in_model_.end() ? nullptr : shared() + found->second;
}

void Snapshot::prefault(const StateImage& image, const std::optional<std::vector<FlatRange>>& ranges) const {
  const int region = hosts_.folder_is_shared ? hosts_.local_rank : session_.world().rank;
  memory_->prefault(own_offset(region), image.own().bytes());
  if (hosts_.host != 0) return;
  if (ranges && on_host()) {
    for (const auto& target : make_copy(*ranges, /*in_two=*/false)->targets()) {
      memory_->prefault(static_cast<std::size_t>(target.data() - memory_->data()), target.size());
    }
    return;
  }
  // The headers and the padding between the files make a difference of a few pages only.
  const auto [first, last] = even_stretch(image.model().data_bytes() + image.optimizer().data_bytes());
  memory_->prefault(first, std::min(last, shared_bytes_) - first);
}

void Snapshot::begin() {
  complete_now();
  const auto ranges = memory_ && on_host() ? own_ranges() : std::nullopt;
  if (!ranges) return;
  copy_ = make_copy(*ranges, /*in_two=*/true);
  begun_ = true;
  step_.optimizer().copy_at_next_steps(copy_);
}

void Snapshot::take(bool at_update) {
  const Nanoseconds began = session_.clock().monotonic();
  const bool begun = std::exchange(begun_, false);
  if (!begun) complete_now();
  const auto ranges = at_update || begun || !on_host() ? own_ranges() : std::nullopt;
  const int rank = session_.world().rank;
  const std::optional<FileImage> moments = own_moments();
  const StateImage image({.rank = rank,
                          .shared = step_.state_is_shared(),
                          .later = ranges.has_value(),
                          .divided = moments.has_value(),
                          .names = names_},
                         visit_);
  const std::vector<std::int64_t> sizes = sizes_of_own(image, moments);
  fit(image, sizes);
  values_ = image.values();
  name_files(image, sizes);
  ++number_;
  told_ = false;
  if (hosts_.saves()) {
    if (hosts_.host == 0) write_shared(image, moments.has_value());
    if (ranges && !on_host()) copy_from_device(*ranges);
    write_own(image, moments);
  }
  // The strategy or the buckets may have changed with the last update: then its copies are made again.
  auto whole = ranges && on_host() ? make_copy(*ranges, /*in_two=*/false) : nullptr;
  if (!begun || !copy_ || !whole || !copy_->copies_same(*whole)) copy_ = std::move(whole);
  step_.optimizer().copy_at_next_steps(copy_);
  from_device_.hand_over();
  if (!hosts_.folder_is_shared && !kept_) send_own(image, sizes);
  if (!at_update) complete_now();
  copy_s_ = to_seconds(session_.clock().monotonic() - began) - from_device_.seconds();
}

bool Snapshot::complete() {
  if (copy_ && !copy_->finished()) return false;
  if (!from_device_.complete()) return false;
  // A communicator that is stopped ends its kernels: what the device computes from then on is wrong.
  if (!told_ && !on_host()) session_.device_communicator().progress();
  if (std::exchange(told_, true) || !hosts_.saves()) return true;
  if (kept_) {
    kept_->mark_written(number_);
  } else if (!spoiled()) {
    memory_->mark_copied(hosts_.local_rank, number_);
  }
  return true;
}

void Snapshot::complete_now() {
  from_device_.complete_now();
  if (copy_ && !copy_->finished()) {
    copy_->finish();
    step_.optimizer().copy_at_next_steps(nullptr);
  }
  if (memory_ || kept_) complete();
}

void Snapshot::offer_again() {
  ++number_;
  taken_ += std::chrono::milliseconds(1);  // so that savers of other hosts ignore the rest of the first try
  if (hosts_.saves()) memory_->mark_copied(hosts_.local_rank, number_);
}

double Snapshot::copy_seconds() const {
  return copy_s_ + (copy_ ? copy_->seconds() : 0) + from_device_.seconds();
}

// The ranks of host 0 divide the bytes evenly. Rank 0 writes values that ranks do not share. `divided`: the optimizer's
// file gets its header alone.
void Snapshot::write_shared(const StateImage& image, bool divided) {
  std::byte* const model = shared();
  std::byte* const optimizer = model + pages(image.model().bytes());
  if (hosts_.is_leader()) {
    image.model().write_header(model);
    image.optimizer().write_header(optimizer);
  }
  const std::size_t in_model = image.model().data_bytes(), in_optimizer = image.optimizer().data_bytes();
  const auto [first, last] = even_stretch(in_model + (divided ? 0 : in_optimizer));
  const bool is_first = session_.world().rank == 0;
  image.model().write_data(model, std::min(first, in_model), std::min(last, in_model), is_first, from_device_);
  image.optimizer().write_data(optimizer, std::max(first, in_model) - in_model, std::max(last, in_model) - in_model,
                               is_first, from_device_);
}

std::pair<std::size_t, std::size_t> Snapshot::even_stretch(std::size_t all) const {
  const std::size_t ranks = hosts_.ranks_here.size();
  const auto place = static_cast<std::size_t>(hosts_.local_rank);
  return {all / ranks * place, place + 1 == ranks ? all : all / ranks * (place + 1)};
}

void Snapshot::write_own(const StateImage& image, const std::optional<FileImage>& moments) {
  if (kept_) return kept_->write_own(image.own().file(), moments);
  const int region = hosts_.folder_is_shared ? hosts_.local_rank : session_.world().rank;
  std::byte* const own = memory_->data() + own_offset(region);
  image.own().write_header(own);
  image.own().write_data(own, 0, image.own().data_bytes(), /*is_first=*/false, from_device_);
}

// Ranks of hosts that do not see the folder send their files to rank 0's host.
void Snapshot::send_own(const StateImage& image, const std::vector<std::int64_t>& sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (hosts_.host_of[i] == 0) continue;
    const int rank = static_cast<int>(i);
    std::vector<std::byte> bytes =
        rank == session_.world().rank ? image.own().file() : std::vector<std::byte>(static_cast<std::size_t>(sizes[i]));
    session_.communicator().broadcast(bytes.data(), bytes.size(), comm::DataType::kUint8, rank).wait();
    if (session_.world().rank == 0) std::memcpy(memory_->data() + own_offset(rank), bytes.data(), bytes.size());
  }
}

// Calls `each` with the intersection of a range and a parameter, the parameter, and the bytes of it before that part.
void Snapshot::for_each_part(const std::vector<FlatRange>& ranges, const PartVisitor& each) const {
  const FlatParameters& parameters = step_.parameters();
  for (const FlatRange& range : ranges) {
    // Parameters lie in their group in the order of the list.
    for (const auto& parameter : parameters.parameters()) {
      if (parameter.group != range.group) continue;
      const std::int64_t begin = std::max(range.begin, parameter.offset);
      const std::int64_t end = std::min(range.end, parameter.offset + parameter.padded);
      if (begin >= end) continue;
      const auto size = static_cast<std::size_t>(parameters.groups()[range.group].element_size);
      each({range.group, begin, end}, parameter, static_cast<std::size_t>(begin - parameter.offset) * size);
    }
  }
}

std::size_t Snapshot::place_of(const FlatParameters::Parameter& parameter) const {
  const auto found = in_model_.find(parameter.name);
  return found != in_model_.end() ? found->second : in_optimizer_.at(std::string(kLeftOutParameter) + parameter.name);
}

std::shared_ptr<UpdateCopy> Snapshot::make_copy(const std::vector<FlatRange>& ranges, bool in_two) const {
  auto copy = std::make_shared<UpdateCopy>(in_two);
  FlatOptimizer& optimizer = step_.optimizer();
  const std::vector<std::string> names = optimizer.state_names();
  for_each_part(ranges, [&](const FlatRange& part, const FlatParameters::Parameter& parameter, std::size_t before) {
    std::byte* const to = shared() + before;
    const auto& group = step_.parameters().groups()[part.group];
    std::vector<UpdateCopy::Piece> pieces{{FlatMemory::address(group.values, part.begin), to + place_of(parameter)}};
    for (std::size_t s = 0; s < names.size(); ++s) {
      pieces.push_back({FlatMemory::address(optimizer.state(part.group)[s], part.begin),
                        to + in_optimizer_.at(names[s] + "/" + parameter.name)});
    }
    copy->add(part, parameter.offset + parameter.tensor.numel() - part.begin,
              static_cast<std::size_t>(group.element_size), pieces);
  });
  copy->divide();
  return copy;
}

void Snapshot::copy_from_device(const std::vector<FlatRange>& ranges) {
  const at::NoGradGuard no_grad;
  FlatOptimizer& optimizer = step_.optimizer();
  const std::vector<std::string> names = optimizer.state_names();
  for_each_part(ranges, [&](const FlatRange& part, const FlatParameters::Parameter& parameter, std::size_t before) {
    std::byte* const to = shared() + before;
    // The padding after a parameter is not in the file.
    const std::int64_t elements = std::min(part.end, parameter.offset + parameter.tensor.numel()) - part.begin;
    if (elements <= 0) return;
    from_device_.add(step_.parameters().groups()[part.group].values.narrow(0, part.begin, elements),
                     to + place_of(parameter));
    for (std::size_t s = 0; s < names.size(); ++s) {
      from_device_.add(optimizer.state_slice({part.group, part.begin, part.begin + elements}, s),
                       to + in_optimizer_.at(names[s] + "/" + parameter.name));
    }
  });
}

void Snapshot::name_files(const StateImage& image, const std::vector<std::int64_t>& sizes) {
  files_.clear();
  if (!hosts_.saves() || !hosts_.is_leader()) return;
  if (hosts_.host == 0) {
    files_.push_back({checkpoints::kModelFile, 0, image.model().bytes(), /*weights=*/"", image.fixed()});
    files_.push_back({checkpoints::kOptimizerFile, pages(image.model().bytes()), image.optimizer().bytes()});
  }
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto here = std::find(hosts_.ranks_here.begin(), hosts_.ranks_here.end(), static_cast<int>(rank));
    if (hosts_.folder_is_shared && here == hosts_.ranks_here.end()) continue;
    const int region =
        hosts_.folder_is_shared ? static_cast<int>(here - hosts_.ranks_here.begin()) : static_cast<int>(rank);
    files_.push_back({checkpoints::rank_file(static_cast<int>(rank)), own_offset(region),
                      static_cast<std::size_t>(sizes[rank]),
                      /*weights=*/std::string(state_path::kParameters)});
  }
}

CheckpointHosts CheckpointHosts::each_alone() const {
  CheckpointHosts result = *this;
  result.host = 0;
  result.folder_is_shared = hosts == 1;
  return result;
}

CheckpointHosts find_checkpoint_hosts(comm::ControlPlane& control, const std::filesystem::path& folder) {
  const comm::World& world = control.world();
  CheckpointHosts result;
  std::vector<std::string> names;
  for (const std::string& name : control.gather("train/checkpoint-hosts", world.host)) {
    const auto known = std::find(names.begin(), names.end(), name);
    result.host_of.push_back(static_cast<int>(known - names.begin()));
    if (known == names.end()) names.push_back(name);
  }
  result.hosts = static_cast<int>(names.size());
  result.host = result.host_of[static_cast<std::size_t>(world.rank)];
  for (int rank = 0; rank < world.size; ++rank) {
    if (result.host_of[static_cast<std::size_t>(rank)] != result.host) continue;
    if (rank < world.rank) ++result.local_rank;
    result.ranks_here.push_back(rank);
  }
  if (result.hosts > 1) result.folder_is_shared = see_same_folder(control, folder);
  return result;
}

}  // namespace dtrain::train
