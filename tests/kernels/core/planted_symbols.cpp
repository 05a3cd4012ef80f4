// What isa_symbols_test.sh must find, and one symbol that it must let pass.

namespace planted {
template <class T>
[[gnu::noinline]] T planted_weak(T x) {
  return x + x;
}
int planted_strong(int x) { return planted_weak(x); }
}  // namespace planted

namespace K25_ISA {
template <class T>
[[gnu::noinline]] T planted_good(T x) {
  return x * x;
}
float use(float x) { return planted_good(x); }
}  // namespace K25_ISA
