"""Operations on many items: tasks, and the verbs that tasks run."""
