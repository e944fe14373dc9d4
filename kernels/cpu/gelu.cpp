#include "kernels/gelu.hpp"

#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void check(const GeluForward& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

// A handful of operations per element and an exponential: counted as published tables do, not as executed.
Cost cost(const GeluForward& a) { return {8 * a.x.count, 2 * a.x.bytes()}; }

void run_cpu(const GeluForward& a, Queue& queue) {
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    auto *y = static_cast<decltype(element)*>(a.y.data), *x = static_cast<decltype(element)*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64,
               [&](int64_t i, int64_t end) { loops.gelu_forward(y + i, x + i, end - i); });
  });
}

void check(const GeluBackward& a) {
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

Cost cost(const GeluBackward& a) { return {16 * a.x.count, 3 * a.x.bytes()}; }

void run_cpu(const GeluBackward& a, Queue& queue) {
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    auto *dx = static_cast<T*>(a.dx.data), *dy = static_cast<T*>(a.dy.data), *x = static_cast<T*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64,
               [&](int64_t i, int64_t end) { loops.gelu_backward(dx + i, dy + i, x + i, end - i); });
  });
}

}  // namespace kernels
