import { Bookmark, BookmarkPlus, ListFilter, Trash2 } from "lucide-react";
import { useState } from "react";
import { Button } from "../../design/button";
import { Dialog } from "../../design/dialog";
import { TextField } from "../../design/fields";
import { Menu, MenuItem, MenuSeparator } from "../../design/menu";
import { notify } from "../../design/notify";
import { dropFilter, type Filter, keepFilter, keptFilters } from "../../live/kept";
import { t } from "../../text/language";

/** Filters that are kept by name; the button says which of them is shown. */
export function FilterMenu({ current, onChoose }: { current: string; onChoose: (query: string) => void }) {
  const [kept, setKept] = useState(keptFilters);
  const [naming, setNaming] = useState(false);
  const shown = kept.find(({ query }) => query === current);
  const drop = (filter: Filter) => {
    setKept(dropFilter(filter.name));
    notify(t("filterDropped", { name: filter.name }), { undo: () => setKept(keepFilter(filter)) });
  };
  return (
    <>
      <Menu
        trigger={
          <Button icon={<ListFilter size={15} aria-hidden="true" />}>
            <span className="max-w-32 truncate" title={shown?.name}>
              {shown?.name ?? t("filters")}
            </span>
          </Button>
        }
      >
        {kept.map((filter) => (
          <MenuItem
            key={filter.name}
            icon={<Bookmark size={15} aria-hidden="true" />}
            onSelect={() => onChoose(filter.query)}
          >
            {filter.name}
          </MenuItem>
        ))}
        {kept.length > 0 && <MenuSeparator />}
        <MenuItem
          icon={<BookmarkPlus size={15} aria-hidden="true" />}
          disabled={current === "" || shown !== undefined}
          onSelect={() => setNaming(true)}
        >
          {t("keepFilter")}
        </MenuItem>
        {shown && (
          <MenuItem danger icon={<Trash2 size={15} aria-hidden="true" />} onSelect={() => drop(shown)}>
            {t("dropFilter", { name: shown.name })}
          </MenuItem>
        )}
      </Menu>
      {naming && (
        <NameDialog
          onClose={() => setNaming(false)}
          onName={(name) => {
            setKept(keepFilter({ name, query: current }));
            notify(t("filterKept", { name }));
          }}
        />
      )}
    </>
  );
}

function NameDialog({ onName, onClose }: { onName: (name: string) => void; onClose: () => void }) {
  const [name, setName] = useState("");
  return (
    <Dialog
      title={t("keepFilterTitle")}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button look="primary" type="submit" form="name-filter" disabled={name.trim() === ""}>
            {t("save")}
          </Button>
        </>
      }
    >
      <form
        id="name-filter"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim() === "") return;
          onName(name.trim());
          onClose();
        }}
      >
        <TextField label={t("name")} help={t("keepFilterMeans")} value={name} onChange={setName} maxLength={60} />
      </form>
    </Dialog>
  );
}
