#include "numerics/matmul_path.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <sys/mman.h>

#include "dtrain/host/cpu.h"

namespace {

using Answer = int();
constexpr const char* kQuestion = "mkl_serv_intel_cpu_true";

std::atomic<bool> says_yes{false};
std::atomic<bool> was_asked{false};

// Returns MKL's own function; null if libtorch was built without MKL.
Answer* mkls_own() {
  static auto* const own = reinterpret_cast<Answer*>(::dlsym(RTLD_NEXT, kQuestion));
  return own;
}

}  // namespace

// MKL calls this function by its name, from any thread.
extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  was_asked = true;
  if (says_yes) return 1;
  Answer* const own = mkls_own();
  return own ? own() : 0;
}

namespace dtrain::train {
namespace {

// Returns the place in a table of libtorch where the dynamic linker writes the function's address for libtorch's calls.
// Null if there is none.
void** find_jump_slot() {
#if defined(__x86_64__)
  void** slot = nullptr;
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        const char* name = std::strrchr(library->dlpi_name, '/');
        if (!name || std::strcmp(name + 1, "libtorch_cpu.so") != 0) return 0;
        const ElfW(Dyn)* entry = nullptr;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = library->dlpi_phdr[i];
          if (header.p_type == PT_DYNAMIC) {
            entry = reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + header.p_vaddr);
          }
        }
        const ElfW(Rela)* relocations = nullptr;
        const ElfW(Sym)* symbols = nullptr;
        const char* names = nullptr;
        std::size_t bytes = 0;
        for (; entry && entry->d_tag != DT_NULL; ++entry) {
          if (entry->d_tag == DT_JMPREL) relocations = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
          if (entry->d_tag == DT_PLTRELSZ) bytes = entry->d_un.d_val;
          if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
          if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        }
        if (!relocations || !symbols || !names) return 1;
        for (std::size_t i = 0; i < bytes / sizeof(ElfW(Rela)); ++i) {
          const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(relocations[i].r_info)];
          if (std::strcmp(names + symbol.st_name, kQuestion) != 0) continue;
          *static_cast<void***>(found) = reinterpret_cast<void**>(library->dlpi_addr + relocations[i].r_offset);
        }
        return 1;
      },
      &slot);
  return slot;
#else
  return nullptr;
#endif
}

// Makes libtorch call dtrain's function; returns true on success. In a program that links libdtrain_train before
// libtorch, the dynamic linker has done so; in Python, where libtorch is loaded first, the table is changed.
bool takes_ours() {
  void* const ours = reinterpret_cast<void*>(&mkl_serv_intel_cpu_true);
  static void** const slot = find_jump_slot();
  if (!slot) return ::dlsym(RTLD_DEFAULT, kQuestion) == ours;
  if (*slot == ours) return true;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(slot) & ~(page - 1);
  if (::mprotect(reinterpret_cast<void*>(first), page, PROT_READ | PROT_WRITE) != 0) return false;
  *slot = ours;
  return true;
}

MatmulChoice stays_default(std::string reason, std::string warning = {}) {
  return {profile::MatmulPath::kDefault, std::move(reason), std::move(warning)};
}

// Returns why the fast path cannot be used; empty: it can.
std::optional<MatmulChoice> why_default() {
  if (!host::is_amd_with_avx2()) return stays_default("this is no processor of AMD with AVX2 and FMA");
  if (!mkls_own()) return stays_default("this libtorch has no MKL");
  if (!takes_ours()) {
    return stays_default("libtorch comes before libdtrain_train",
                         "the program links libtorch before dtrain::train; link dtrain::train first");
  }
  return std::nullopt;
}

}  // namespace

void watch_matmul() {
  static_cast<void>(mkls_own() && takes_ours());
}

bool has_fast_matmul() {
  return !why_default();
}

MatmulChoice choose_matmul(config::Matmul wanted) {
  if (says_yes) return {profile::MatmulPath::kFast, "this process has chosen it before", {}};
  if (wanted == config::Matmul::kDefault) return stays_default("optimizations.matmul: default");
  if (const auto why = why_default()) return *why;
  if (was_asked) {
    return stays_default(
        "libtorch had computed before",
        "libtorch has computed something before the run began, and MKL has chosen; compute in the trial, or in a "
        "script in Python after dtrain.init()");
  }
  says_yes = true;
  return {profile::MatmulPath::kFast, "this is a processor of AMD with AVX2 and FMA", {}};
}

}  // namespace dtrain::train
