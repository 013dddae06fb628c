//! Tests of a master as a whole.

mod work;
