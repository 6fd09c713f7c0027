#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "dtrain/base/error.h"

namespace dtrain::python {
namespace {

// As much as the main thread has by default. Only pages that are used take memory.
constexpr std::size_t kStackBytes = 8 << 20;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("cannot make a stack for the training loop", errno);
  stack_ = static_cast<std::byte*>(memory);
  ::mprotect(stack_, page, PROT_NONE);  // what grows beyond it ends the process instead of writing elsewhere
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_ + page;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = &caller_;
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext() passes arguments of the size of int
  ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::run), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
}

Fiber::~Fiber() {
  if (has_ended_) ::munmap(stack_, kStackBytes + static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

void Fiber::run(unsigned low, unsigned high) {
  auto* self = reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(low) | static_cast<std::uintptr_t>(high) << 32);
  self->body_();
  self->has_ended_ = true;
  self->is_inside_ = false;
}

void Fiber::resume() {
  if (is_inside_ || has_ended_) throw Error("the training loop is resumed while it runs, or after its end");
  is_inside_ = true;
  ::swapcontext(&caller_, &own_);
}

void Fiber::suspend() {
  is_inside_ = false;
  ::swapcontext(&own_, &caller_);
}

}  // namespace dtrain::python
