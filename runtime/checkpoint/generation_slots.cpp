#include "dtrain/checkpoint/generation_slots.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/huge_pages.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMappedPage = 4096;
constexpr std::size_t kCacheLine = 64;
constexpr std::string_view kSlotPrefix = ".slot-";
constexpr std::string_view kSurvivorPrefix = ".survivor-step-";
constexpr std::uint32_t kLayout = 2;  // of the board, and of the records that ranks publish in it

enum Completion : int { kFree, kUnderWay, kBySurvivor };

constexpr std::size_t in_whole_pages(std::size_t bytes) {
  return (bytes + kMappedPage - 1) / kMappedPage * kMappedPage;
}

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw SystemError("cannot " + what + " " + path.string(), errno);
}

UniqueFd open_folder(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail("open", path);
  return fd;
}

// A file of that name that is there stays as it is: a process may still write into it.
void write_new_file(int folder, const std::string& name, std::string_view bytes) {
  ::unlinkat(folder, name.c_str(), 0);
  const UniqueFd fd(::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd || write_all(fd.get(), bytes) != bytes.size()) fail("write into memory", name);
}

bool has_size(const fs::path& file, std::size_t bytes) {
  std::error_code code;
  return fs::is_regular_file(fs::symlink_status(file, code)) && fs::file_size(file, code) == bytes && !code;
}

bool fits(const fs::path& slot, std::size_t model_bytes, std::size_t optimizer_bytes) {
  return has_size(slot / kModelFile, model_bytes) && has_size(slot / kOptimizerFile, optimizer_bytes);
}

// Huge pages are reserved, read and freed in a fraction of the time. The kernel collapses pages where they are mapped.
void take_huge_pages_of(int file, std::size_t bytes) {
  if (bytes < 2 * kHugePage || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return;
  std::byte* const data = reserve_addresses(bytes);
  if (!data) return;
  if (::mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) {
    take_huge_pages(file, 0, {data, bytes});
  }
  ::munmap(data, bytes);
}

// Makes a file of so many bytes, and reserves memory for the first ones.
void reserve_file(const fs::path& path, std::size_t bytes, std::size_t reserved) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) fail("make", path);
  take_huge_pages_of(fd.get(), reserved);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("make", path);
  int result = 0;
  do {
    result = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(reserved));
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail("reserve the memory of", path);
}

void reserve_file(const fs::path& path, std::size_t bytes) {
  reserve_file(path, bytes, bytes);
}

// Takes a state's mark and name away, so that its memory may be written again.
void retire(const fs::path& folder, std::string& name, const std::string& as) {
  const fs::path path = folder / as;
  if (::rename((folder / name).c_str(), path.c_str()) != 0) fail("rename", folder / name);
  name = as;
  ::unlink((path / kManifestFile).c_str());
}

std::string free_name(const fs::path& folder) {
  std::error_code code;
  for (int i = 0;; ++i) {
    std::string name = std::string(kSlotPrefix) + std::to_string(i);
    if (!fs::exists(folder / name, code)) return name;
  }
}

}  // namespace

struct GenerationBoard::Header {
  std::uint32_t layout = kLayout;
  std::int32_t world = 0;
  std::uint64_t ranks = 0, own_bytes = 0;
  alignas(kCacheLine) std::atomic<int> turn{0};
  std::atomic<std::int64_t> newest{-1};
  std::atomic<bool> unsettled{false};
  alignas(kCacheLine) std::atomic<int> completion{kFree};
};

struct alignas(kCacheLine) GenerationBoard::Rank {
  int number = 0;
  std::atomic<std::uint64_t> written{0}, failed{0};
  struct Published {
    std::atomic<std::int64_t> batch{-1};
    std::int64_t epoch = 0;
    std::uint64_t bytes = 0;
  };
  Published published[2];
  int next = 0;  // of this rank alone
};

std::size_t GenerationBoard::bytes_before_buffers(std::size_t ranks) {
  return in_whole_pages(sizeof(Header) + ranks * sizeof(Rank));
}

void GenerationBoard::Unmap::operator()(std::byte* data) const {
  ::munmap(data, size);
}

void GenerationBoard::create(const fs::path& folder, const std::vector<int>& ranks, int world, std::size_t own_bytes) {
  const std::size_t own = in_whole_pages(own_bytes), count = ranks.size();
  const std::string unfinished = std::string(kBoardFile) + ".new";
  ::unlink((folder / unfinished).c_str());
  reserve_file(folder / unfinished, bytes_before_buffers(count) + 2 * count * own);
  const std::unique_ptr<std::byte, Unmap> memory = map_file(folder / unfinished);
  auto* const header = new (memory.get()) Header{};
  header->world = world;
  header->ranks = count;
  header->own_bytes = own;
  auto* const of_ranks = reinterpret_cast<Rank*>(header + 1);
  for (std::size_t rank = 0; rank < count; ++rank) (new (of_ranks + rank) Rank{})->number = ranks[rank];
  if (::rename((folder / unfinished).c_str(), (folder / kBoardFile).c_str()) != 0) fail("rename", folder / unfinished);
}

std::unique_ptr<std::byte, GenerationBoard::Unmap> GenerationBoard::map_file(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) fail("open", path);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const place = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (place == MAP_FAILED) fail("map", path);
  return {static_cast<std::byte*>(place), Unmap{size}};
}

GenerationBoard::GenerationBoard(const fs::path& folder) : memory_(map_file(folder / kBoardFile)) {
  const std::size_t size = memory_.get_deleter().size;
  const bool fits = size >= sizeof(Header) && header().layout == kLayout && header().ranks <= size &&
                    size == bytes_before_buffers(header().ranks) + 2 * header().ranks * header().own_bytes;
  if (!fits) throw SystemError((folder / kBoardFile).string() + " is of another version of dtrain", EINVAL);
}

GenerationBoard::Header& GenerationBoard::header() const {
  return *reinterpret_cast<Header*>(memory_.get());
}

GenerationBoard::Rank& GenerationBoard::of(int rank) const {
  return reinterpret_cast<Rank*>(&header() + 1)[rank];
}

std::byte* GenerationBoard::buffer(int rank, int which) const {
  const auto number = 2 * static_cast<std::size_t>(rank) + static_cast<std::size_t>(which);
  return memory_.get() + bytes_before_buffers(header().ranks) + number * header().own_bytes;
}

int GenerationBoard::ranks() const {
  return static_cast<int>(header().ranks);
}

int GenerationBoard::number(int rank) const {
  return of(rank).number;
}

int GenerationBoard::world() const {
  return header().world;
}

std::size_t GenerationBoard::own_bytes() const {
  return header().own_bytes;
}

void GenerationBoard::mark_written(int rank, std::uint64_t number, bool failed) const {
  if (failed) of(rank).failed = number;
  of(rank).written = number;
}

bool GenerationBoard::all_written(std::uint64_t number) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (of(rank).written < number) return false;
  }
  return true;
}

bool GenerationBoard::any_failed(std::uint64_t number) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (of(rank).failed == number) return true;
  }
  return false;
}

int GenerationBoard::turn() const {
  return header().turn;
}

std::int64_t GenerationBoard::newest() const {
  return header().newest;
}

void GenerationBoard::set(int turn, std::int64_t newest) const {
  header().turn = turn;
  header().newest = newest;
}

bool GenerationBoard::has_unsettled() const {
  return header().unsettled;
}

void GenerationBoard::set_unsettled(bool unsettled) const {
  header().unsettled = unsettled;
}

bool GenerationBoard::begin_completion() const {
  int expected = kFree;
  return header().completion.compare_exchange_strong(expected, kUnderWay);
}

void GenerationBoard::end_completion(bool by_survivor) const {
  header().completion = by_survivor ? kBySurvivor : kFree;
}

std::span<std::byte> GenerationBoard::begin_publication(int rank) const {
  Rank& own = of(rank);
  own.published[own.next].batch = -1;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // no byte is written before the mark is gone
  return {buffer(rank, own.next), own_bytes()};
}

void GenerationBoard::publish(int rank, std::int64_t batch, std::int64_t epoch, std::size_t bytes) const {
  Rank& own = of(rank);
  Rank::Published& published = own.published[own.next];
  published.epoch = epoch;
  published.bytes = bytes;
  published.batch.store(batch, std::memory_order_release);
  own.next = 1 - own.next;
}

std::optional<GenerationBoard::Publication> GenerationBoard::published(int rank, std::int64_t batch) const {
  for (int which = 0; which < 2; ++which) {
    const Rank::Published& published = of(rank).published[which];
    if (published.batch.load(std::memory_order_acquire) != batch) continue;
    return Publication{batch, published.epoch, {buffer(rank, which), published.bytes}};
  }
  return std::nullopt;
}

std::vector<std::int64_t> GenerationBoard::batches_of(int rank) const {
  std::vector<std::int64_t> batches;
  for (const auto& published : of(rank).published) {
    if (published.batch >= 0 && published.bytes <= own_bytes()) batches.push_back(published.batch);
  }
  return batches;
}

GenerationSlot::GenerationSlot(const fs::path& folder, const std::string& name, std::size_t model_bytes,
                               std::size_t optimizer_bytes)
    : folder_(open_folder(folder / name)),
      data_(reserve_addresses(in_whole_pages(model_bytes) + in_whole_pages(optimizer_bytes))),
      bytes_(in_whole_pages(model_bytes) + in_whole_pages(optimizer_bytes)) {
  if (!data_) fail("map", folder / name);
  const auto map = [&](const char* file, std::size_t bytes, std::byte* to) {
    const UniqueFd fd(::openat(folder_.get(), file, O_RDWR | O_CLOEXEC));
    const bool mapped = fd && ::mmap(to, in_whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                     fd.get(), 0) != MAP_FAILED;
    if (mapped) return;
    const int code = errno;
    ::munmap(data_, bytes_);
    throw SystemError("cannot map " + (folder / name / file).string(), code);
  };
  map(kModelFile, model_bytes, data_);
  map(kOptimizerFile, optimizer_bytes, data_ + in_whole_pages(model_bytes));
}

GenerationSlot::GenerationSlot(GenerationSlot&& other) noexcept
    : folder_(std::move(other.folder_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

GenerationSlot::~GenerationSlot() {
  if (data_) ::munmap(data_, bytes_);
}

void GenerationSlot::prefault(std::size_t offset, std::size_t bytes) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14; without it the first copy maps the pages
  const std::size_t begin = offset / kMappedPage * kMappedPage, end = std::min(in_whole_pages(offset + bytes), bytes_);
  if (begin < end) ::madvise(data_ + begin, end - begin, kPopulateWrite);
}

void GenerationSlot::write_file(const std::string& name, std::string_view bytes) const {
  write_new_file(folder_.get(), name, bytes);
}

UniqueFd GenerationSlot::open_file(const std::string& name, std::size_t bytes) const {
  UniqueFd fd(::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("write into memory", name);
  return fd;
}

Json to_json(const SlotNames& names) {
  return {{"slots", names.slots}, {"turn", names.turn}, {"newest", names.newest}, {"others", names.others}};
}

SlotNames slot_names_of(const Json& json) {
  return {.slots = json.at("slots").get<std::vector<std::string>>(),
          .turn = json.at("turn").get<int>(),
          .newest = json.at("newest").get<std::int64_t>(),
          .others = json.at("others").get<std::vector<std::string>>()};
}

SlotNames reserve_slots(const fs::path& folder, std::size_t model_bytes, std::size_t optimizer_bytes,
                        std::optional<std::size_t> reserved_of_optimizer) {
  SlotNames names;
  std::vector<std::string> spare, useless;
  std::vector<Entry> states = list(folder);
  while (!states.empty() && !states.back().damage.empty()) {
    useless.push_back(states.back().path.filename());
    states.pop_back();
  }
  std::optional<Entry> newest;
  if (!states.empty()) {
    newest = states.back();
    states.pop_back();
  }
  std::error_code code;
  const auto sort_in = [&](const std::string& name) {
    (fits(folder / name, model_bytes, optimizer_bytes) ? spare : useless).push_back(name);
  };
  for (const Entry& state : states) sort_in(state.path.filename());
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kSlotPrefix)) sort_in(name);
    if (name.starts_with(kSurvivorPrefix)) useless.push_back(name);
  }
  for (const std::string& name : useless) fs::remove_all(folder / name, code);
  if (newest && fits(newest->path, model_bytes, optimizer_bytes)) {
    names.slots.push_back(newest->path.filename());
    names.newest = newest->about.step;
    names.turn = 1;
  } else if (newest) {
    names.others.push_back(newest->path.filename());
  }
  for (std::string& name : spare) {
    if (names.slots.size() == 2) {
      fs::remove_all(folder / name, code);
      continue;
    }
    if (!name.starts_with(kSlotPrefix)) retire(folder, name, free_name(folder));
    names.slots.push_back(name);
  }
  while (names.slots.size() < 2) {
    const std::string name = free_name(folder);
    if (::mkdir((folder / name).c_str(), 0700) != 0) fail("make", folder / name);
    try {
      reserve_file(folder / name / kModelFile, model_bytes);
      reserve_file(folder / name / kOptimizerFile, optimizer_bytes, reserved_of_optimizer.value_or(optimizer_bytes));
    } catch (const SystemError&) {
      fs::remove_all(folder / name, code);
      throw;
    }
    names.slots.push_back(name);
  }
  return names;
}

void complete_generation(const fs::path& folder, SlotNames& names, const GenerationFiles& files) {
  std::string& slot = names.slots[static_cast<std::size_t>(names.turn)];
  const UniqueFd open = open_folder(folder / slot);
  Manifest manifest{files.about, files.files, /*has_checksums=*/false};
  manifest.files.push_back({kStateFile, files.state.size(), {}});
  write_new_file(open.get(), kStateFile, files.state);
  write_new_file(open.get(), kManifestFile, to_text(manifest));
  const std::string name = step_folder(files.about.step);
  if (::rename((folder / slot).c_str(), (folder / name).c_str()) != 0) fail("rename", folder / slot);
  slot = name;
  names.turn = 1 - names.turn;
  names.newest = files.about.step;
  std::error_code code;
  std::string& other = names.slots[static_cast<std::size_t>(names.turn)];
  if (!other.starts_with(kSlotPrefix)) retire(folder, other, free_name(folder));
  for (const std::string& old : std::exchange(names.others, {})) fs::remove_all(folder / old, code);
}

void reserve_optimizers(const fs::path& folder, const SlotNames& names, std::size_t optimizer_bytes) {
  for (const std::string& name : names.slots) reserve_file(folder / name / kOptimizerFile, optimizer_bytes);
}

void complete_part(const fs::path& folder, SlotNames& names, const GenerationFiles& files) {
  std::string& slot = names.slots[static_cast<std::size_t>(names.turn)];
  const UniqueFd open = open_folder(folder / slot);
  write_new_file(open.get(), kManifestFile, to_text({files.about, files.files, /*has_checksums=*/false}));
  const std::string name = folder_name(kPartPrefix, files.about.step);
  if (::rename((folder / slot).c_str(), (folder / name).c_str()) != 0) fail("rename", folder / slot);
  slot = name;
}

void settle_part(const fs::path& folder, SlotNames& names, std::int64_t step) {
  names.turn = 1 - names.turn;
  names.newest = step;
  std::string& other = names.slots[static_cast<std::size_t>(names.turn)];
  if (!other.starts_with(kSlotPrefix)) retire(folder, other, free_name(folder));
  std::error_code code;
  for (const std::string& old : std::exchange(names.others, {})) fs::remove_all(folder / old, code);
}

void drop_part(const fs::path& folder, SlotNames& names) {
  std::string& slot = names.slots[static_cast<std::size_t>(names.turn)];
  if (!slot.starts_with(kSlotPrefix)) retire(folder, slot, free_name(folder));
}

void complete_by_survivor(const fs::path& folder, const GenerationSlot& slot, const GenerationFiles& files,
                          const std::vector<OwnFile>& own) {
  const fs::path made = folder / folder_name(kSurvivorPrefix, files.about.step);
  std::error_code code;
  fs::remove_all(made, code);
  if (::mkdir(made.c_str(), 0700) != 0) fail("make", made);
  const UniqueFd open = open_folder(made);
  for (const char* const file : {kModelFile, kOptimizerFile}) {
    if (::renameat(slot.folder(), file, open.get(), file) != 0) fail("rename", made / file);
  }
  for (const OwnFile& file : own) write_new_file(open.get(), file.name, file.bytes);
  Manifest manifest{files.about, files.files, /*has_checksums=*/false};
  if (!own.empty()) {
    manifest.files.push_back({kStateFile, files.state.size(), {}});
    write_new_file(open.get(), kStateFile, files.state);
  }
  write_new_file(open.get(), kManifestFile, to_text(manifest));
  const fs::path target =
      folder / (own.empty() ? folder_name(kSharedPrefix, files.about.step) : step_folder(files.about.step));
  if (::rename(made.c_str(), target.c_str()) != 0) fail("rename", made);
}

}  // namespace dtrain::checkpoints
