// Which bytes an arena hands out, and which pages go back to the kernel, against a model that keeps every piece.
#include "shared_memory/arena_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace dtrain::comm {
namespace {

constexpr std::size_t kMebi = 1u << 20;
constexpr std::size_t kPage = 64u << 10;

class StoppedClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return time; }
  Nanoseconds wall() const override { return time; }
  Nanoseconds time{0};
};

class Model {
 public:
  explicit Model(unsigned seed)
      : random_(seed),
        pages_(kCapacity / kPage),
        pool_(
            kCapacity, kPage, [this](const Extent& pages) { return release(pages); }, clock_) {}

  void step() {
    const unsigned choice = next(10);
    if (choice < 5 || pieces_.empty()) {
      allocate();
    } else if (choice < 8) {
      free(some_piece());
    } else if (choice == 8) {
      pin(some_piece());
    } else if (!pinned_.empty()) {
      unpin();
    }
    clock_.time += std::chrono::milliseconds(next(200));
    check();
  }
  std::size_t released() const { return released_; }

 private:
  static constexpr std::size_t kCapacity = 512 * kMebi;
  struct Piece {
    std::size_t end = 0;
    int pins = 0;
    bool freed = false;
  };
  using Pieces = std::map<std::size_t, Piece>;

  unsigned next(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }
  Pieces::iterator some_piece() { return std::next(pieces_.begin(), next(static_cast<unsigned>(pieces_.size()))); }

  void allocate() {
    const std::size_t bytes = next(3) == 0 ? next(40 * kMebi) : next(3) == 0 ? next(2 * kMebi) : next(5000);
    const auto at = pool_.allocate(bytes);
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    if (!at) {
      EXPECT_LT(largest_gap(), size);
      return;
    }
    EXPECT_EQ(*at % 64, 0u);
    ASSERT_LE(*at + size, kCapacity);
    const auto [piece, is_new] = pieces_.emplace(*at, Piece{.end = *at + size});
    ASSERT_TRUE(is_new);
    if (const auto next = std::next(piece); next != pieces_.end()) {
      ASSERT_LE(piece->second.end, next->first);
    }
    if (piece != pieces_.begin()) {
      ASSERT_LE(std::prev(piece)->second.end, piece->first);
    }
    for (std::size_t page = *at / kPage; page * kPage < *at + size; ++page) pages_[page] = true;
  }

  void free(Pieces::iterator piece) {
    const std::size_t at = piece->first;
    const bool was_freed = std::exchange(piece->second.freed, true);
    if (piece->second.pins == 0) pieces_.erase(piece);  // before its pages may go back to the kernel
    EXPECT_EQ(pool_.free(at), !was_freed);
    EXPECT_FALSE(pool_.free(at)) << "twice";
    EXPECT_FALSE(pool_.free(at + 1)) << "no piece begins there";
  }

  void pin(Pieces::iterator piece) {
    const std::size_t inside = next(static_cast<unsigned>(piece->second.end - piece->first));
    const std::size_t at = piece->first + inside;
    EXPECT_EQ(pool_.pin(at, piece->second.end - at), !piece->second.freed);
    EXPECT_FALSE(pool_.pin(at, piece->second.end - at + 1)) << "more than the piece";
    if (piece->second.freed) return;
    ++piece->second.pins;
    pinned_.push_back(at);
  }

  void unpin() {
    const auto which = pinned_.begin() + next(static_cast<unsigned>(pinned_.size()));
    const auto piece = std::prev(pieces_.upper_bound(*which));
    EXPECT_TRUE(pool_.is_pinned(*which));
    const std::size_t at = *which;
    pinned_.erase(which);
    if (--piece->second.pins == 0 && piece->second.freed) pieces_.erase(piece);
    pool_.unpin(at);
  }

  bool release(const Extent& range) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_EQ(range.begin % kPage, 0u);
    EXPECT_EQ(range.end % kPage, 0u);
    for (const auto& [begin, piece] : pieces_) {
      EXPECT_TRUE(piece.end <= range.begin || range.end <= begin) << "pages of a piece in use";
    }
    for (std::size_t page = range.begin / kPage; page < range.end / kPage; ++page) {
      EXPECT_TRUE(pages_[page]) << "the kernel has this page";
      pages_[page] = false;
    }
    released_ += range.size();
    return true;
  }

  std::size_t largest_gap() const {
    std::size_t largest = 0, end = 0;
    for (const auto& [begin, piece] : pieces_) {
      largest = std::max(largest, begin - end);
      end = piece.end;
    }
    return std::max(largest, kCapacity - end);
  }

  void check() {
    std::size_t in_use = 0;
    for (const auto& [begin, piece] : pieces_) in_use += piece.end - begin;
    peak_ = std::max(peak_, in_use);
    const ArenaStatistics statistics = pool_.statistics();
    ASSERT_EQ(statistics.in_use, in_use);
    ASSERT_EQ(statistics.peak, peak_);
    ASSERT_EQ(statistics.resident, static_cast<std::size_t>(std::count(pages_.begin(), pages_.end(), true)) * kPage);
  }

  std::mt19937 random_;
  StoppedClock clock_;
  Pieces pieces_;
  std::vector<std::size_t> pinned_;  // addresses, one for each pin
  std::vector<bool> pages_;          // that the kernel may have given
  std::size_t released_ = 0, peak_ = 0;
  ArenaPool pool_;
};

TEST(ArenaPool, KeepsToItsModel) {
  std::size_t released = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Model model(seed);
    for (int i = 0; i < 1500 && !testing::Test::HasFailure(); ++i) model.step();
    released += model.released();
  }
  EXPECT_GT(released, 0u) << "no page went back in any of them";
}

struct Pages {
  StoppedClock clock;
  std::size_t released = 0;
  bool refuses = false;
  ArenaPool pool{4096 * kMebi, kPage,
                 [this](const Extent& pages) {
                   if (!refuses) released += pages.size();
                   return !refuses;
                 },
                 clock};
  void use(std::size_t pieces, std::size_t bytes) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < pieces; ++i) all.push_back(pool.allocate(bytes).value());
    for (const std::size_t at : all) EXPECT_TRUE(pool.free(at));
  }
};

TEST(ArenaPool, StepsThatRepeatKeepTheirPages) {
  Pages pages;
  for (int step = 0; step < 100; ++step) {
    pages.use(10, 100 * kMebi);
    pages.use(300, 3000);
    pages.clock.time += std::chrono::seconds(1);
  }
  EXPECT_EQ(pages.released, 0u);
  EXPECT_EQ(pages.pool.statistics().resident, 1000 * kMebi);
}

TEST(ArenaPool, PagesThatNobodyUsesAnyMoreGoBack) {
  Pages pages;
  pages.use(10, 100 * kMebi);
  for (int i = 0; i < 3; ++i) {
    pages.clock.time += ArenaPool::kOfLate + std::chrono::seconds(1);
    pages.use(1, 100 * kMebi);
  }
  EXPECT_EQ(pages.pool.statistics().resident, 125 * kMebi) << "a quarter more than the use of late";
  EXPECT_EQ(pages.released, 875 * kMebi);
  EXPECT_EQ(pages.pool.statistics().peak, 1000 * kMebi);
}

TEST(ArenaPool, PagesThatTheKernelRefusesToTakeStay) {
  Pages pages;
  pages.refuses = true;
  pages.use(10, 100 * kMebi);
  pages.clock.time += 3 * ArenaPool::kOfLate;
  pages.use(1, kMebi);
  pages.clock.time += 3 * ArenaPool::kOfLate;
  pages.use(1, kMebi);
  EXPECT_EQ(pages.pool.statistics().resident, 1000 * kMebi);
}

}  // namespace
}  // namespace dtrain::comm
