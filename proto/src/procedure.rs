include!("../generated/procedure.rs");

impl Procedure {
    /// Name within its service.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_of_the_proto_files_has_a_path_that_leads_back_to_it() {
        let mut rpcs = Vec::new();
        for (service, file) in [
            ("Master", include_str!("../proto/mc/v1/master.proto")),
            ("Raft", include_str!("../proto/mc/v1/raft.proto")),
        ] {
            let lines = file.lines().filter_map(|line| line.strip_prefix("  rpc ")?.split_once('('));
            rpcs.extend(lines.map(|(name, _)| (format!("/mc.v1.{service}/{name}"), name)));
        }
        assert_eq!(rpcs.len(), Procedure::ALL.len());
        for ((path, name), procedure) in rpcs.into_iter().zip(Procedure::ALL) {
            assert_eq!((procedure.path(), procedure.name()), (&*path, name));
            assert_eq!(Procedure::of_path(&path), Some(procedure));
        }
    }

    #[test]
    fn a_path_that_only_looks_like_one_is_none() {
        for path in ["", "/", "/Hello", "/mc.v1.Master/hello", "/mc.v1.Master/Hello/", "/mc.v1.Raft/Hello"] {
            assert_eq!(Procedure::of_path(path), None, "{path}");
        }
    }
}
