#pragma once
// What g++ has and clang lacks, declared so that clang-tidy can parse sources written for g++.
// scripts/check_tidy.py includes it before every source; no build does.

template <class Vector, class Index>
Vector __builtin_shuffle(Vector a, Index from);
template <class Vector, class Index>
Vector __builtin_shuffle(Vector a, Vector b, Index from);
